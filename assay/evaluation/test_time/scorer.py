"""The scorer that guides a search: a verifier, or a reward model given by its run or folder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.config import TrainConfig
from assay.errors import ConfigError, VerifierError, did_you_mean, message
from assay.host.files import read_json
from assay.reward_models.options import checkpoint_folder
from assay.reward_models.process import ProcessRewardModel
from assay.session.assemble import open_verifiers
from assay.training.reward_rows import SEPARATORS
from assay.types import FACTS_FILE, Problem
from assay.verify.expression import BUILT_IN, parse_expression
from assay.verify.service import VerifierService

OUTCOME, PROCESS = "reward_model", "process_reward_model"
REDUCE = ("min", "product", "last", "mean")
_HEADS = {"ForSequenceClassification": OUTCOME, "ForTokenClassification": PROCESS}
SCORERS = "a run of [reward_model], a reward model's folder, or a verifier such as math"


@dataclass(frozen=True)
class Scorer:
    """Scores completions.

    scores_beginnings: whether the scorer gives meaningful scores to partial completions. split:
    step separator of a process reward model; None for any other scorer.
    """

    name: str
    service: VerifierService
    scores_beginnings: bool
    split: str | None = None

    def check_problem(self, problem: Problem) -> None:
        """Raise VerifierError if a problem lacks a field that the scorer reads."""
        self.service.check_problem(replace(problem, verifier=None))


def open_scorer(name: str, reduce: str | None, config: TrainConfig, stack: ExitStack) -> Scorer:
    """Load the scorer with a name before sampling, so that its errors occur early. ``stack`` closes
    it.

    reduce: how a process reward model combines the scores of steps; None means the model's own
    setting. Raises VerifierError, RunError or ConfigError.
    """
    if reduce is not None and reduce not in REDUCE:
        remedy = did_you_mean(reduce, REDUCE)
        raise ConfigError(message("--reduce", reduce, ", ".join(REDUCE), remedy))
    folder = checkpoint_folder(name)
    is_model = name.partition("@")[0] not in BUILT_IN and Path(folder).expanduser().is_dir()
    expression = f"{_kind_of(folder, name)}*1.0" if is_model else name
    options = {key: dict(values) for key, values in config.verification.options.items()}
    terms = _terms_of(expression)
    learned = terms[0].partition("@")[0] if len(terms) == 1 else ""
    if is_model:
        options.setdefault(learned, {})["path"] = folder
    if reduce is not None:
        if learned != PROCESS:
            where, found = "--reduce", f"{reduce}, but --scorer {name} does not score steps"
            raise ConfigError(
                message(where, found, "a process reward model as --scorer", "remove it")
            )
        options.setdefault(learned, {})["reduce"] = reduce
    settings = config.verification.model_copy(update={"options": options})
    # Scores of different scorers are not comparable, so one scorer scores rows of all tags.
    data = config.data.model_copy(update={"verifier": expression, "verifier_by_tag": {}})
    changed = config.model_copy(update={"verification": settings, "data": data})
    service = open_verifiers(changed, stack)
    service.check([expression])
    # Built-in verifiers need a final answer, so they cannot score a partial completion.
    # Reward models and user functions may score a partial completion.
    known = {term.partition("@")[0] for term in terms} & BUILT_IN.keys()
    of_parts = known <= {OUTCOME, PROCESS}
    split = None
    if learned == PROCESS:
        said = ProcessRewardModel.of(options.get(learned, {})).options["split"]
        split = SEPARATORS.get(said, said)
    return Scorer(name, service, of_parts, split)


def _terms_of(expression: str) -> list[str]:
    try:
        return [name for term in parse_expression(expression, "--scorer") for name in term.names]
    except VerifierError as error:
        if not expression.replace("/", "").replace("-", "").isidentifier():
            raise
        near = did_you_mean(expression, BUILT_IN)
        raise VerifierError(message("--scorer", repr(expression), SCORERS, near)) from error


def _kind_of(folder: str, name: str) -> str:
    """Return the verifier name for the folder of a reward model. Raises VerifierError."""
    place = Path(folder).expanduser()
    facts: dict[str, Any] = read_json(place / FACTS_FILE) or {}
    if facts.get("verifier") in (OUTCOME, PROCESS):
        return facts["verifier"]
    # Without a facts file from Assay, the model's architecture shows the kind of its head.
    named = (read_json(place / "config.json") or {}).get("architectures")
    architectures = named if named and isinstance(named, list) else ["no model"]
    for end, verifier in _HEADS.items():
        if str(architectures[0]).endswith(end):
            return verifier
    found = f"{architectures[0]}, which is not a reward model"
    raise VerifierError(message(f"--scorer {name}", found, SCORERS))
