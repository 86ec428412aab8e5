"""Is an answer the same as the reference? Rows for verifiers that learn to say so.

A scalar model gives the probability at once; a chain-of-thought model writes its reasoning and then
a verdict, as Kimi k1.5's reward models for mathematics do (arXiv:2501.12599, section 2.3.5). Both
are trained from the same labelled pairs:

    examples.reward_model.equivalence:scalar_rows?pairs=pairs.jsonl       for an outcome model
    examples.reward_model.equivalence:reasoning_traces?pairs=pairs.jsonl  for ``[sft]``
    examples.reward_model.equivalence:verdict_problems?pairs=held.jsonl   for ``data.heldout``
    examples.reward_model.equivalence:says_the_label                      the verifier of those

Without ``pairs`` they are made here: sums as an answer (``7+5-3``) against a number (``9``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from assay.data.rows import check_text, complaint, copy_row, key_among
from assay.data.rowset import load_rows
from assay.data.sources import python_name, source
from assay.data.tasks import (
    OPERATORS,
    Generated,
    Split,
    check_chain,
    draw_chain,
    written_steps,
)
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.types import Completion, Problem

REFERENCE_KEYS = ("reference", "gold", "answer")
CANDIDATE_KEYS = ("candidate", "pred", "response", "completion")
LABEL_KEYS = ("label", "expected", "correct")
QUESTION = "Same value?"
SCALAR_PROMPT = "{question}\nReference: {reference}\nAnswer:"
REASONING_PROMPT = "{question}\nReference: {reference}\nAnswer: {candidate}\nReasoning:"
_VERDICT = re.compile(r"Verdict: (yes|no)\b")


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """A question, its reference answer, a candidate answer, and whether they are the same.

    reasoning: how that is seen, where somebody has written it down. source: ``file.jsonl:12``.
    """

    question: str
    reference: str
    candidate: str
    label: bool
    reasoning: str = ""
    source: str = ""


def read_answer_pair(row: Any, where: str, default_id: str) -> AnswerPair:
    """Return the labelled pair that a row describes; `AnswerPair` values pass through.

    A row has ``reference`` (or ``gold`` or ``answer``), ``candidate`` (or ``pred``, ``response`` or
    ``completion``), ``label`` (or ``expected`` or ``correct``), and perhaps ``question`` and
    ``reasoning``.
    """
    if isinstance(row, AnswerPair):
        return row
    keys = copy_row(row, where)

    def text(names: Sequence[str], default: str | None = None) -> str:
        if default is not None and not any(name in keys for name in names):
            return default
        name = key_among(names, keys, where, f'"{names[0]}" (text)')
        value = keys[name]
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise complaint(where, name, value, "text that is not blank, or a number")
        check_text(value, where, name)
        return value

    name = next((name for name in LABEL_KEYS if name in keys), LABEL_KEYS[0])
    if not isinstance(keys.get(name), bool):
        raise complaint(where, name, keys.get(name), "true or false")
    return AnswerPair(
        question=text(("question", "prompt", "problem"), QUESTION),
        reference=text(REFERENCE_KEYS),
        candidate=text(CANDIDATE_KEYS),
        label=keys[name],
        reasoning=text(("reasoning",), ""),
        source=where,
    )


def answer_pairs(
    pairs: str | None = None,
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    num_terms: int = 4,
    max_number: int = 9,
) -> Sequence[AnswerPair]:
    """Return labelled pairs: of a source, or sums against numbers, half of them the same.

    A wrong reference is off by one to three, so that no look at the ends of a sum tells it. The
    splits share no sum.
    """
    if pairs is not None:
        if python_name(pairs):
            raise DataError(message("pairs", pairs, "a JSONL or Parquet file, or hf:NAME"))
        return load_rows("pairs of answers", read_answer_pair, [pairs])
    check_chain(split, num_terms, max_number, OPERATORS)

    def make(index: int) -> AnswerPair:
        random = Random(f"equivalence {seed} {index}")
        chain = draw_chain(random, split, num_terms, max_number, OPERATORS)
        results = list(chain.partial_results())
        label = random.random() < 0.5
        off = 0 if label else random.choice((-1, 1)) * random.randint(1, 3)
        reference = results[-1] + off
        steps = ";".join(written_steps(chain, results))
        sign = "=" if label else "!="
        return AnswerPair(
            question=QUESTION,
            reference=str(reference),
            candidate=str(chain),
            label=label,
            reasoning=f"{steps};{results[-1]}{sign}{reference}",
            source=f"equivalence-{split}-{seed}-{index}",
        )

    return Generated(size, make)


@source
def scalar_rows(**settings: Any) -> Sequence[dict[str, Any]]:
    """Return rows for an outcome model: the prompt holds the reference, the candidate is scored.

    settings: of `answer_pairs`.
    """
    found = answer_pairs(**settings)

    def make(index: int) -> dict[str, Any]:
        pair = found[index]
        prompt = SCALAR_PROMPT.format(question=pair.question, reference=pair.reference)
        return {"prompt": prompt, "completion": f" {pair.candidate}", "label": pair.label}

    return Generated(len(found), make)


@source
def reasoning_traces(**settings: Any) -> Sequence[Trace]:
    """Return traces that reason and end in a verdict; without reasoning, the verdict alone.

    settings: of `answer_pairs`.
    """
    found = answer_pairs(**settings)

    def make(index: int) -> Trace:
        pair = found[index]
        return Trace(reasoning_prompt(pair), verdict_text(pair.reasoning, pair.label), pair.source)

    return Generated(len(found), make)


@source
def verdict_problems(**settings: Any) -> Sequence[Problem]:
    """Return problems that ask for a verdict, whose right one is in the spec: for `says_the_label`.

    settings: of `answer_pairs`.
    """
    found = answer_pairs(**settings)

    def make(index: int) -> Problem:
        pair = found[index]
        name = pair.source or f"equivalence-{index}"
        return Problem(name, reasoning_prompt(pair), {"label": pair.label})

    return Generated(len(found), make)


def says_the_label(problem: Problem, completion: Completion) -> dict[str, Any]:
    """Judge a verifier that reasons: 1 where its verdict is the label, else 0."""
    said = read_verdict(completion.text)
    extracted = {None: None, True: "yes", False: "no"}[said]
    return {"score": float(said is problem.spec["label"]), "extracted": extracted}


def reasoning_prompt(pair: AnswerPair) -> str:
    """Return what a chain-of-thought verifier is asked."""
    return REASONING_PROMPT.format(
        question=pair.question, reference=pair.reference, candidate=pair.candidate
    )


def verdict_text(reasoning: str, label: bool) -> str:
    """Return what it answers; `read_verdict` reads it."""
    said = f"Verdict: {'yes' if label else 'no'}"
    return f" {reasoning}\n{said}" if reasoning else f" {said}"


def read_verdict(text: str) -> bool | None:
    """Return the last verdict of a completion; None where there is none."""
    found = _VERDICT.findall(text)
    return found[-1] == "yes" if found else None
