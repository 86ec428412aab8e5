"""Write a sweep file that trains a run again, each time without one term of its reward."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import filter as filter_keys
from pathlib import Path

import tomli_w

from assay.config import TrainConfig
from assay.config.guard import Rule
from assay.errors import ConfigError, RunError, message
from assay.host.files import check_output, config_of, write_atomic
from assay.host.records import read_step_rows
from assay.run.evaluations import is_evaluated
from assay.run.seed_statistics import MIN_SEEDS
from assay.session.consent import open_config
from assay.sweep.file import RESERVED
from assay.verify.expression import Term, parse_expression

BASELINE = "all_terms"
FAULTS = (
    "not_finite",
    "not_judged",
    "not_judged_sought",
    "mismatch",
    "mismatch_growth",
    "same_prompt",
)
"""Guard rules that find faults of the machine or the configuration, and stop an ablation too."""
HEAD = "# written by assay ablate; assay sweep runs it, too\n"


def write_ablation(
    run: Path,
    *,
    num_seeds: int = MIN_SEEDS,
    overrides: Sequence[str] = (),
    report: Sequence[str] = (),
    out: Path | None = None,
    overwrite: bool = False,
    trust_run: bool = False,
) -> Path:
    """Write a sweep file that has one arm per term of a run's reward; each arm trains without its
    term.

    The weight 0 switches a term off: the term is still measured and recorded. The first term of the
    reward still decides which completions are correct. overrides: changes of all arms. report:
    sources of report problems. out: the file; None: ``ablate_RUN.toml``. Returns the file.

    Guard rules about the reward only warn in the sweep: an arm without the correctness term fires
    these rules, and a stopped run could not be compared.

    Raises UserError for a run whose reward has only one term, and if another file already exists at
    the path.
    """
    config = open_config(run, overrides=overrides, trust_run=trust_run)
    arms = {BASELINE: {"about": "the run as it is"}, **_arms(config, run)}
    changes = [f"guard.options.{name}.action=note" for name in _rules(config, run)] + [*overrides]
    tree = {
        "base": str(config_of(run)),
        "baseline": BASELINE,
        "seeds": [*range(num_seeds)],
        "set": changes,
        **({"report": {"problems": [*report]}} if report else {}),
        "arms": arms,
    }
    path = Path(f"ablate_{run.resolve().name}.toml") if out is None else out
    check_output(path)
    text = HEAD + tomli_w.dumps(tree)
    if path.exists() and path.read_text(encoding="utf-8") != text and not overwrite:
        remedy = "run it with assay sweep, or add --overwrite"
        raise RunError(message(str(path), "another file", "a new file", remedy))
    write_atomic(path, text.encode())
    return path


def _rules(config: TrainConfig, run: Path) -> list[str]:
    """Return the names of the guard rules that can stop the run because of its reward or its
    policy.
    """
    rows = [read_step_rows(run / f"{name}.jsonl") for name in ("metrics", "evaluations")]
    keys = {key for row in [*rows[0], *rows[1]] for key in row}

    def is_measured(rule: Rule) -> bool:
        # A guard rule would end a run that lacks the rule's metrics after the run's first step.
        reads = ["eval/pass_at_1"] if rule.check == "against_heldout" else rule.reads
        found = is_evaluated(rows[1], reads) or any(filter_keys(keys, one) for one in reads)
        return found or not rule.needs

    stops = [rule for rule in config.watched.active() if rule.action == "stop"]
    return [rule.name for rule in stops if rule.name not in FAULTS and is_measured(rule)]


def _arms(config: TrainConfig, run: Path) -> dict[str, dict[str, object]]:
    """Return one arm for each reward term of the run; the arm sets the weight of its term to 0."""
    if config.drawing is None or config.distill is not None:
        accepted = "a run that learns from its verifier, such as [rl]"
        raise ConfigError(message(str(config_of(run)), f"a run of [{config.stage}]", accepted))
    expressions = _expressions(config)
    terms = [one for text in expressions.values() for one in parse_expression(text)]
    active = dict.fromkeys(one.name for one in terms if one.weight != 0)
    if all(len(parse_expression(text)) < 2 for text in expressions.values()):
        found = f"{config.data.verifier}, one term"
        accepted = "a weighted sum, such as math*1.0 + think_format*0.1"
        raise ConfigError(message(f"{config_of(run)} data.verifier", found, accepted))
    arms: dict[str, dict[str, object]] = {}
    for name in active:
        arm, number = _arm_name(name), 1
        while arm in arms or arm in (BASELINE, RESERVED):
            number += 1
            arm = f"{_arm_name(name)}_{number}"
        changes = [
            f"{key}={json.dumps(_without(text, name)) if key != 'data.verifier' else new}"
            for key, text in expressions.items()
            if (new := _without(text, name)) != text
        ]
        arms[arm] = {"about": f"the weight of {name} is 0", "set": changes}
    return arms


def _expressions(config: TrainConfig) -> Mapping[str, str]:
    """Return all verifier expressions of a configuration, by configuration key."""
    data = config.data
    found = {"data.verifier": data.verifier}
    of_parts = {name for name, part in data.mixture.items() if part.verifier}
    for tag, expression in data.verifier_by_tag.items():
        if not re.fullmatch(r"[\w-]+", tag):
            accepted = "tags of letters, digits, _ and -, which an override can name"
            raise ConfigError(message("data.verifier_by_tag", json.dumps(tag), accepted))
        # For a tag, the verifier of a mixture's part takes precedence over data.verifier_by_tag.
        key = f"mixture.{tag}.verifier" if tag in of_parts else f"verifier_by_tag.{tag}"
        found[f"data.{key}"] = expression
    return found


def _without(expression: str, name: str) -> str:
    """Return a verifier expression in which every term with the given name has the weight 0."""
    terms = parse_expression(expression)
    if all(one.name != name for one in terms):
        return expression
    return " + ".join(_word(one, off=one.name == name) for one in terms)


def _word(term: Term, off: bool) -> str:
    if off:
        return f"{term.name}*0"
    # A reward term without a number keeps the default weight that its verifier declares.
    # In a verifier expression, a minus sign may precede a term, but not the number in the term.
    is_negative = term.negative or (term.weight or 0.0) < 0
    weight = "" if term.weight is None else f"*{abs(term.weight)!r}"
    return f"{'-' if is_negative else ''}{term.name}{weight}"


def _arm_name(term: str) -> str:
    return "without_" + re.sub(r"\W+", "_", term).strip("_")
