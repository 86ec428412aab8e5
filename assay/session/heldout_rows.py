"""Rows that a run only evaluates: held-out problems and canaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from assay.config import DataConfig, TrainConfig
from assay.config.mixture import tags_of_sources
from assay.data.leaked_examples import HeldoutTexts, leak_words
from assay.data.overlap import Questions, normalize, plain_text, words_in
from assay.data.problems import load_problems
from assay.data.rows import Text
from assay.errors import DataError, VerifierError, message
from assay.host.terminal import warn
from assay.run.evaluations import MUST_FAIL
from assay.session.mixture_check import PartCheck
from assay.session.reward_trial import try_rewards
from assay.session.tag_check import TagWatch
from assay.types import Problem
from assay.verify.service import VerifierService


def read_heldout(
    config: TrainConfig, verifiers: VerifierService, tags: TagWatch | None = None
) -> Sequence[Problem]:
    """Open the held-out problems for evaluations; returns an empty list if none are configured.

    tags: tags of the training rows. Warns of each tag of ``verifier_by_tag`` that neither the
    training nor the held-out rows have.
    """
    data, tags = config.data, tags or TagWatch(config)
    if not data.heldout:
        tags.warn()
        return []

    parts = PartCheck(config, trains=False)

    def check(problem: Problem) -> None:
        parts.check(problem)
        verifiers.check_problem(problem)
        tags.see(problem)

    heldout = load_problems(
        data.heldout,
        on_bad_row=data.on_bad_row,
        limit=config.evaluation.max_problems,
        check=check,
        tags=tags_of_sources(data.mixture, "heldout"),
    )
    parts.finish(heldout)
    tags.of(heldout).warn()
    refuse_unjudgeable(heldout, verifiers, "held-out rows")
    try_row_rewards(config, verifiers, heldout, "held-out rows")
    return heldout


def read_canaries(config: TrainConfig, verifiers: VerifierService) -> Sequence[Problem]:
    """Open the canaries; returns an empty list if none are configured."""
    data = config.data
    if not data.canaries:
        return []
    # Canaries need no part of a mixture: the tags of a file of canaries are the kinds of canaries.
    # All canaries are evaluated, because the first rows of a file may all be of one kind.
    found = load_problems(data.canaries, on_bad_row=data.on_bad_row, check=verifiers.check_problem)
    refuse_unjudgeable(found, verifiers, "canaries")
    try_row_rewards(config, verifiers, found, "canaries")
    return found


def must_fail(config: TrainConfig, canary: Problem) -> bool:
    """Whether no honest completion passes a canary: whether its kind is one of `MUST_FAIL`."""
    # A part's tag chooses a verifier and sampling settings, and is no kind of canaries.
    kinds = (tag for tag in canary.tags if tag not in config.data.mixture)
    return next(kinds, "") in MUST_FAIL


def leaked_lines(
    config: TrainConfig, heldout: Sequence[Problem], systems: Mapping[str, str]
) -> list[str]:
    """Return a warning about held-out rows in the prompt template and in system messages.

    systems: location of each system message of the rows. Both texts may contain few-shot examples.
    ``data.near_duplicates = "ignore"`` skips the check.
    """
    data = config.data
    if data.near_duplicates == "ignore" or not heldout:
        return []
    index = HeldoutTexts(heldout, data.near_duplicate_overlap)
    texts = {data.prompt_template: "data.prompt_template", data.system_prompt: "data.system_prompt"}
    texts |= {text: f"the system message of {place}" for text, place in systems.items()}
    leaks = [leak for text, where in texts.items() if text for leak in index.leaks(where, text)]
    return leak_words(leaks, "few-shot examples (data.near_duplicates = 'ignore' skips the check)")


def near_settings(data: DataConfig) -> dict[str, Any]:
    """Return the settings of `check_overlap` in the section ``[data]``."""
    return {
        "near": data.near_duplicates,
        "overlap": data.near_duplicate_overlap,
        "similarity": data.near_duplicate_similarity,
    }


def canary_words(canaries: Sequence[Problem]) -> str:
    """Return the number of canaries as the end of a list; "" without canaries."""
    return f", {len(canaries)} canaries" if canaries else ""


def canary_notes(config: TrainConfig, canaries: Sequence[Problem]) -> list[str]:
    """Describe the canaries of a run and when they are evaluated; empty without canaries."""
    if not canaries:
        return []
    hacks = sum(must_fail(config, one) for one in canaries)
    kinds = f" ({hacks} of them must fail)" if hacks else ""
    every = config.evaluation.every
    when = "before the first and after the last step" + (f", and every {every}" if every else "")
    return [f"{len(canaries)} canaries{kinds}, evaluated {when}"]


def refuse_trained(canaries: Sequence[Problem], rows: Iterable[tuple[Text, str]]) -> None:
    """Raise DataError if the question of a canary is also a training row (prompt, location)."""
    if not canaries:
        return
    questions = Questions(None)
    for canary in canaries:
        questions.add(normalize(canary))
    for prompt, place in rows:
        if (same := questions.equal(words_in(plain_text(prompt)))) is not None:
            found = f"the question of the canary {canaries[same].place}"
            remedy = "remove one of them"
            raise DataError(message(f"{place} prompt", found, "questions of no canary", remedy))


def refuse_unjudgeable(rows: Iterable[Problem], verifiers: VerifierService, what: str) -> None:
    """Raise VerifierError if this machine cannot judge any of the rows."""
    reason = ""
    for problem in rows:
        # Rows may be generated on demand, so no row is read after the first that can be judged.
        if not (why := verifiers.lacks(problem)):
            return
        reason = reason or why
    if reason:
        accepted = f"at least one of the {what} that this machine can judge"
        raise VerifierError(message(f"verifier {verifiers.default_expression}", reason, accepted))


def try_row_rewards(
    config: TrainConfig, verifiers: VerifierService, rows: Sequence[Problem], what: str
) -> list[str]:
    """Call the user's reward functions on the rows; print warnings and return the other lines."""
    seconds = config.verification.trial_seconds
    notes = try_rewards(rows, what, verifiers, config.data, seconds) if seconds else []
    for line in notes:
        if line.startswith("warning: "):
            warn(line.removeprefix("warning: "))
    return [line for line in notes if not line.startswith("warning: ")]
