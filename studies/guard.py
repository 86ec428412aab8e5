"""Does the guard stop faulty runs and leave healthy runs alone? ``python -m studies.guard``.

There are ten kinds of faulty runs with five seeds each, and 100 healthy short runs of four
algorithms, all with the defaults of ``[guard]``. Results of finished runs are kept, so that a
stopped command continues. The tables are written into docs/trust.md.
"""

from __future__ import annotations

import argparse
import copy
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from assay import source
from assay.config.guard import RULES, GuardConfig
from assay.config.toml_text import merged
from assay.data.tasks import chain_sums
from assay.errors import DataError, RunStopped
from assay.generate.engine import Engine
from assay.host.files import read_rows
from assay.init.tiny_model import make_model
from assay.run.checkpoints import MANIFEST
from assay.run.guard_checks import CHECKS
from assay.run.guard_windows import Seen
from assay.run.history import History
from assay.run.intervals import share_interval
from assay.session.results import TrainResult
from assay.testing import byte_tokenizer
from assay.training import api
from studies.campaign import ROOT, once

SUMS: dict[str, Any] = {"num_terms": 3, "max_number": 5}
SHAPE = "&".join(f"{key}={value}" for key, value in SUMS.items())
PROBLEMS = f"assay.data.tasks:chain_sums?{SHAPE}"
TRACES = f"assay.data.tasks:imperfect_traces?{SHAPE}&corrupted=0.15&guessed=0.4&bare=1"
NUM_TRACES = 20_000
NUM_HELDOUT = 128
NUM_COLD_STARTS = 5
STEPS = 30
FIRST_SEED = 100  # smaller ones were looked at while limits were chosen
ALGORITHMS = ("grpo", "rloo", "dapo", "reinforce_plus_plus")
BROKEN_TEMPLATE = "{% for m in messages %}{% endfor %}{{ '?' }}"
PAGE = ROOT / "docs" / "trust.md"


@source
def honest_heldout(size: int = NUM_HELDOUT, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield held-out sums that ``math`` judges, independent of the run's reward."""
    for one in chain_sums(size, seed, "heldout", **SUMS):
        yield {"id": one.id, "prompt": one.prompt, **one.spec, "verifier": "math"}


class StaleEngine(Engine):
    """An engine that keeps its first weights, but reports the newest policy version."""

    def __init__(self, model: Any, *rest: Any, **more: Any) -> None:
        super().__init__(copy.deepcopy(model), *rest, **more)

    def load_policy(self, weights: Any) -> None:
        """Store the number of the policy version, but not its weights."""
        self.policy_version = weights.version


@dataclass(frozen=True)
class Faulty:
    """A kind of faulty run.

    expected: rules that should find the fault. changes: changes of the healthy configuration.
    engine: class of the engine.
    """

    name: str
    expected: Sequence[str]
    changes: Mapping[str, Any] = field(default_factory=dict)
    engine: type[Engine] = Engine
    template: str | None = None


def rewarded(expression: str, learning_rate: float = 1e-4) -> dict[str, Any]:
    """Return configuration changes for another reward. Held-out rows keep their verifier."""
    return {"data": {"verifier": expression}, "optimizer": {"learning_rate": learning_rate}}


HASTY = 1e-3  # finds in 30 steps what another run finds in hundreds


AGAINST = ("reward_against_heldout", "reward_against_correctness", "heldout_collapse")
FAULTY = (
    Faulty("a leaky verifier", AGAINST, rewarded("studies.guard_rewards:leaky", HASTY)),
    Faulty(
        "a hackable reward, no KL", AGAINST, rewarded("math + studies.guard_rewards:busy*2", HASTY)
    ),
    Faulty(
        "a learning rate 30 times too high",
        ("collapse", "heldout_collapse", "entropy_collapse", "not_finite"),
        {"optimizer": {"learning_rate": 30 * 1e-4}},
    ),
    Faulty("a sampler with old weights", ("mismatch", "mismatch_growth"), engine=StaleEngine),
    Faulty(
        "a verifier that begins to fail", ("not_judged",), rewarded("studies.guard_rewards:failing")
    ),
    Faulty(
        "a bonus for length",
        ("length", *AGAINST),
        rewarded("math + studies.guard_rewards:long*2", HASTY),
    ),
    Faulty(
        "a reward of the wrong sign",
        AGAINST,
        rewarded("-1*math"),
    ),
    Faulty("training problems in the held-out set", ("refused",), {"data": {"heldout": "train"}}),
    Faulty("a broken chat template", ("same_prompt",), template=BROKEN_TEMPLATE),
    Faulty(
        "an entropy driven to zero",
        ("entropy_lost", "entropy_collapse"),
        {"algorithm": {"entropy_weight": -1.0}, "optimizer": {"learning_rate": HASTY}},
    ),
)


def cold_start(work: Path, seed: int) -> str:
    """Return the checkpoint of a model that solves some of the sums. It is trained once per
    seed."""
    folder = work / f"cold-start-{seed}"
    tree = {
        "run": {"directory": str(folder), "name": "sft", "seed": seed, "threads": 1},
        "model": {"path": str(folder / "model")},
        "data": {"template": "base", "prompt_template": "{question}", "think": "free"},
        "sft": {"traces": [f"{TRACES}&size={NUM_TRACES}&seed={seed}"], "tokens_per_step": 1000},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 20, "schedule": "linear"},
        "checkpoint": {"every": 1_000_000, "keep_last": 1},
    }

    def make() -> Mapping[str, Any]:
        make_model(folder / "model", seed, hidden_size=64, num_layers=2)
        return {"checkpoint": uninterrupted(api.train(tree, quiet=True)).checkpoint}

    return once(folder, tree, make)["checkpoint"]


def uninterrupted(result: TrainResult) -> TrainResult:
    """Return a result. Raises KeyboardInterrupt if the run was interrupted."""
    if result.ended == "interrupted":
        raise KeyboardInterrupt
    return result


def config_of(work: Path, name: str, seed: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a short run: the healthy configuration with changes."""
    train = f"{PROBLEMS}&split=train&size=4000&seed={seed}"
    base: dict[str, Any] = {
        "run": {"name": name, "directory": str(work), "seed": seed, "threads": 1},
        "model": {"path": cold_start(work.parents[1], seed % NUM_COLD_STARTS)},
        "data": {
            "template": "base",
            "prompt_template": "{question}",
            "think": "free",
            "train": [train],
            "heldout": [f"studies.guard:honest_heldout?seed={seed}"],
            "near_duplicates": "ignore",
        },
        "sampling": {"max_tokens": 48},
        "rl": {"steps": STEPS, "num_prompts": 8, "group_size": 8},
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 5},
        "evaluation": {"every": 10, "num_samples": 2, "temperatures": [1.0]},
        "checkpoint": {"every": 10, "keep_last": 1, "keep_best": False},
        "verification": {
            "num_workers": 1,
            "trial_seconds": 0.0,
            "allow": ["studies.guard_rewards"],
        },
    }
    tree = merged(base, changes)
    if tree["data"]["heldout"] == "train":
        tree["data"]["heldout"] = [train]
    return tree


def perform(work: Path, faulty: Faulty, seed: int) -> dict[str, Any]:
    """Perform a run and return its end, the deciding rule, and the step. Finished runs are kept."""
    folder = work / f"{faulty.name.replace(' ', '-').replace(',', '')}-{seed}"
    rules = {name: [rule.action, rule.limit, rule.window] for name, rule in RULES.items()}
    key = {"kind": faulty.name, "changes": faulty.changes, "steps": STEPS, "rules": rules}

    def make() -> Mapping[str, Any]:
        tree = config_of(folder, "run", seed, faulty.changes)
        if faulty.template is not None:
            model = folder / "model"
            shutil.copytree(tree["model"]["path"], model, ignore=shutil.ignore_patterns(MANIFEST))
            byte_tokenizer(faulty.template).save_pretrained(model)
            tree["model"]["path"] = str(model)
            tree["data"]["template"] = "chat"
        started, ended, why = time.perf_counter(), "finished", ""
        try:
            with mock.patch("assay.session.assemble.Engine", faulty.engine):
                ended = uninterrupted(api.train(tree, quiet=True)).ended
        except RunStopped as error:
            ended, why = "stopped", str(error)
        except DataError as error:
            ended, why = "refused", str(error)
        found = read_outcome(folder / "run") if ended != "refused" else {"spoke": []}
        shutil.rmtree(folder / "run" / "rollouts", ignore_errors=True)
        shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
        seconds = time.perf_counter() - started
        return {"ended": ended, "why": why, "seconds": seconds, **found}

    return dict(once(folder, key, make))


def read_outcome(run: Path) -> dict[str, Any]:
    """Return the rules that fired in a run, as [action, rule, step], and its held-out
    accuracies."""
    spoke = [
        [str(event["kind"]).removeprefix("guard_"), event["rule"], event["step"]]
        for event in read_rows(run / "events.jsonl")
        if event["kind"] in ("guard_note", "guard_pause", "guard_stop")
    ]
    accuracies = [row["eval/pass_at_1"] for row in read_rows(run / "evaluations.jsonl")]
    return {"spoke": spoke, "accuracies": accuracies}


Outcomes = Mapping[str, Sequence[Mapping[str, Any]]]


def stopped_by(found: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return (rule, step) of the stop or pause of a run; None if the run was not stopped."""
    if found["ended"] == "refused":
        return "refused", 0
    return next(((rule, step) for how, rule, step in found["spoke"] if how != "note"), None)


def faulty_table(found: Outcomes) -> Iterator[str]:
    """Yield the rows of the table of faulty runs."""
    yield "| injected fault | stopped by the right rule | rule: steps of the stops |"
    yield "|---|---:|---|"
    for faulty in FAULTY:
        stops = [stopped_by(one) for one in found[faulty.name]]
        right = sum(stop is not None and stop[0] in faulty.expected for stop in stops)
        steps: dict[str, list[int]] = {}
        for stop in stops:
            steps.setdefault(stop[0] if stop else "not stopped", []).append(stop[1] if stop else 0)
        words = "; ".join(_when(rule, some) for rule, some in sorted(steps.items()))
        yield f"| {faulty.name} | {right} of {len(stops)} | {words} |"


def _when(rule: str, steps: Sequence[int]) -> str:
    if rule == "not stopped":
        return f"not stopped: {len(steps)}"
    if rule == "refused":
        return "refused before the first step, by the check for overlap"
    return f"`{rule}`: {', '.join(map(str, sorted(steps)))}"


def healthy_table(found: Outcomes) -> Iterator[str]:
    """Yield the rows of the table of healthy runs, and the rate of false alarms."""
    yield "| algorithm | runs | stopped or paused | notes | held-out accuracy, first and last |"
    yield "|---|---:|---:|---|---|"
    total = alarms = 0
    for name, runs in found.items():
        stops = [stop for one in runs if (stop := stopped_by(one)) is not None]
        notes = Counter(rule for one in runs for how, rule, _ in one["spoke"] if how == "note")
        said = ", ".join(f"`{rule}` {count}" for rule, count in notes.most_common()) or "none"
        ends = [sum(one["accuracies"][n] for one in runs) / len(runs) for n in (0, -1)]
        which = ", ".join(f"`{rule}` at {step}" for rule, step in stops)
        cell = f"{len(stops)}{f' ({which})' if which else ''}"
        yield f"| {name} | {len(runs)} | {cell} | {said} | {ends[0]:.0%}, {ends[1]:.0%} |"
        total, alarms = total + len(runs), alarms + len(stops)
    low, high = share_interval(alarms / total, total)
    yield ""
    yield (
        f"False alarms: {alarms} of {total} healthy runs were stopped or paused"
        f" (95 % interval {low:.1%} to {high:.1%})."
    )


def ask_recorded(folder: Path) -> Iterator[tuple[str, Sequence[tuple[str, str, int]]]]:
    """Yield each RL run below a folder, and the rules that fire in it, as (action, rule, step).

    Each rule with its defaults is applied to each step, as in a run in progress. For a rule that
    fires several times, only the first time is listed.
    """
    rules = [rule for rule in GuardConfig().active() if not rule.stages or "rl" in rule.stages]
    for path in sorted(folder.rglob("metrics.jsonl")):
        rows = list(read_rows(path))
        if len(rows) < 20 or "reward/mean" not in rows[-1]:
            continue
        history, spoke = History(), list[tuple[str, str, int]]()
        evaluations = list(read_rows(path.with_name("evaluations.jsonl")))
        for row in rows:
            history.add(row)
            known = [one for one in evaluations if one["step"] <= row["step"]]
            seen = Seen(history, known, row, planned=len(rows))
            for rule in rules:
                told = any(rule.name == name for _, name, _ in spoke)
                if not told and CHECKS[rule.check](rule, seen):
                    spoke.append((rule.action, rule.name, row["step"]))
        yield str(path.parent.relative_to(folder)), spoke


def recorded_table(folder: Path) -> Iterator[str]:
    """Yield the findings of the rules in runs that were recorded without a guard."""
    found = dict(ask_recorded(folder))
    notes = Counter(rule for spoke in found.values() for how, rule, _ in spoke if how == "note")
    said = ", ".join(f"`{rule}` {count}" for rule, count in notes.most_common()) or "none"
    stopped = {run: spoke for run, spoke in found.items() if any(one[0] != "note" for one in spoke)}
    yield f"Of {len(found)} recorded runs, {len(stopped)} would have been stopped. Notes: {said}."
    yield ""
    yield "| run | stopped by, after step |"
    yield "|---|---|"
    for run, spoke in stopped.items():
        rules = ", ".join(f"`{rule}` {step}" for how, rule, step in spoke if how != "note")
        yield f"| `{run}` | {rules} |"


def rules_table() -> Iterator[str]:
    """Yield the rows of the table of rules, from ``assay/config/guard.toml``."""
    yield "| rule | finds | action | limit | window | where the default comes from |"
    yield "|---|---|---|---|---:|---|"
    for rule in RULES.values():
        limit = f"`guard.{rule.setting}`" if rule.setting else "none" if rule.limit is None else ""
        limit = limit or f"{rule.limit:g}" + (f", floor {rule.floor:g}" if rule.floor else "")
        cells = (f"`{rule.name}`", rule.finds, rule.action, limit, rule.window, rule.origin)
        yield f"| {' | '.join(map(str, cells))} |"


def write_part(page: Path, name: str, lines: Sequence[str], by: str = "studies.guard") -> None:
    """Write lines between the two comments with a name in a page. by: name of the writing
    module."""
    begin, end = f"<!-- {name}: written by python -m {by} -->", f"<!-- end of {name} -->"
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    page.write_text(f"{head}{begin}\n{chr(10).join(lines)}\n{end}{tail}", encoding="utf-8")


def jobs(seeds: int, healthy: int) -> Iterator[tuple[str, Faulty, int]]:
    """Yield every run as (table, kind, seed)."""
    for faulty in FAULTY:
        yield from (("faulty", faulty, FIRST_SEED + number) for number in range(seeds))
    for seed in range(FIRST_SEED, FIRST_SEED + healthy):
        for name in ALGORITHMS:
            yield "healthy", Faulty(name, (), {"algorithm": {"name": name}}), seed


@contextmanager
def told(what: str) -> Iterator[Callable[[str], None]]:
    started = time.perf_counter()
    words: list[str] = []
    yield words.append
    print(f"{what}: {' '.join(words)}, {time.perf_counter() - started:.1f} s", flush=True)


def main() -> None:
    """Perform all missing runs, then write the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.guard", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="of each kind of faulty run")
    parser.add_argument("--healthy", type=int, default=25, help="seeds of each algorithm")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "studies" / "guard")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--recorded", type=Path, help="print what the rules say of runs in there")
    parser.add_argument("--only", default="", help="kinds whose name holds this; writes no page")
    options = parser.parse_args()
    if options.recorded is not None:
        print("\n".join(recorded_table(options.recorded)))
        return
    found: dict[str, dict[str, list[Any]]] = {"faulty": {}, "healthy": {}}
    for table, kind, seed in jobs(options.seeds, options.healthy):
        if options.only in kind.name:
            with told(f"{table}, {kind.name}, seed {seed}") as say:
                one = perform(options.work / table, kind, seed)
                say(f"{one['ended']} {one['spoke']}")
            found[table].setdefault(kind.name, []).append(one)
    if not options.only:
        write_part(options.page, "rules", list(rules_table()))
        if options.seeds:
            write_part(options.page, "faulty runs", list(faulty_table(found["faulty"])))
        if options.healthy:
            write_part(options.page, "healthy runs", list(healthy_table(found["healthy"])))
        print(options.page)


if __name__ == "__main__":
    main()
