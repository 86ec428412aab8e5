"""Verifier ``instructions``: whether a completion does what IFEval's checkable instructions ask.

The 25 instruction types, strict and loose, of Zhou et al., "Instruction-Following Evaluation for Large
Language Models", arXiv:2311.07911, section 2. Verdicts are those of the public scorer, which
``bench/instruction_agreement.py`` measures, but where that scorer does not repeat itself or draws at
random: languages are detected with a fixed seed; a letter to count that is no letter (``#``) is counted,
where it takes another at random; arguments that are missing or 0 mean what they say, where it draws
some; keywords are plain text, where it reads them as patterns and fails on ``C++``; and an invisible
character is no word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.base import Field, Part, Verifier, known_errors
from assay.verify.instructions.rules import RULES, Instruction, read_instruction

MODES = ("strict", "loose")
CREDITS = ("all_or_nothing", "fraction")
MAX_INSTRUCTIONS = 60


def judge_instructions(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the answer follows every instruction, else 0; the detail names those it does not.

    Reads ``instruction_id_list``, ``kwargs``, ``mode``, ``credit`` and ``stricter`` of the spec.
    Components: ``strict`` and ``loose`` (all instructions followed, 0 or 1), ``share_followed``, and
    each instruction's id (0 or 1), the last two in the mode asked for.
    """
    instructions = read_instructions(problem)
    loosely = _option(problem, "mode", MODES) == "loose"
    in_part = _option(problem, "credit", CREDITS) == "fraction"
    stricter = _option(problem, "stricter", (False, True))
    text = _answer(completion)
    strict = [each.is_followed(text, stricter) for each in instructions]
    loose = [
        followed or each.is_followed_loosely(text, stricter)
        for each, followed in zip(instructions, strict, strict=True)
    ]
    followed = loose if loosely else strict
    share = sum(followed) / len(followed)
    passed = all(followed)
    missed = [each.name for each, ok in zip(instructions, followed, strict=True) if not ok]
    score = share if in_part else float(passed)
    return Part(
        score,
        score=score,
        passed=passed,
        detail=f"not followed: {', '.join(missed)}" if missed else "",
        components={
            "strict": float(all(strict)),
            "loose": float(all(loose)),
            "share_followed": share,
            **_by_name(instructions, followed),
        },
    )


def _answer(completion: Completion) -> str:
    text = completion.answer_text
    # The line ends behind a think block are the template's, and no first line or paragraph.
    return text if len(text) == len(completion.text) else text.lstrip("\r\n")


def _by_name(instructions: Sequence[Instruction], followed: Sequence[bool]) -> dict[str, float]:
    """Return 1 or 0 by id; an id that stands several times is followed where all of them are."""
    found: dict[str, float] = {}
    for each, ok in zip(instructions, followed, strict=True):
        found[each.name] = min(found.get(each.name, 1.0), float(ok))
    return found


def read_instructions(problem: Problem) -> tuple[Instruction, ...]:
    """Return the instructions of a problem; raises VerifierError, whose message says which and where."""
    where = f"problem {problem.id}: spec"
    names, arguments = problem.spec.get("instruction_id_list"), problem.spec.get("kwargs")
    for key, value, accepts in (
        ("instruction_id_list", names, "a list of 1 to 60 instruction ids"),
        ("kwargs", arguments, "a list of tables, one for each instruction"),
    ):
        if not _is_list(value):
            raise VerifierError(message(f"{where}.{key}", _shown(value), accepts))
    names, arguments = cast("Sequence[Any]", names), cast("Sequence[Any]", arguments)
    if not 1 <= len(names) <= MAX_INSTRUCTIONS:
        raise VerifierError(
            message(f"{where}.instruction_id_list", f"{len(names)} ids", f"1 to {MAX_INSTRUCTIONS}")
        )
    if len(names) != len(arguments):
        raise VerifierError(
            message(
                f"{where}.kwargs",
                f"{len(arguments)} tables",
                f"{len(names)}, one for each of instruction_id_list",
            )
        )
    pairs = zip(names, arguments, strict=True)
    return tuple(read_instruction(name, each, where, i) for i, (name, each) in enumerate(pairs))


def check_instructions(spec: Mapping[str, Any]) -> None:
    """Raise VerifierError, which begins with the key, for a spec that holds a malformed instruction."""
    try:
        read_instructions(Problem("", "", spec))
    except VerifierError as error:
        raise VerifierError(str(error).removeprefix("problem : spec.")) from error


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:80]


def _option(problem: Problem, key: str, accepted: Sequence[Any]) -> Any:
    value = problem.spec.get(key, accepted[0])
    if not any(value is each or (isinstance(value, str) and value == each) for each in accepted):
        shown = ", ".join(str(each).lower() for each in accepted)
        raise VerifierError(message(f"problem {problem.id}: spec.{key}", _shown(value), shown))
    return value


def _are_ids(value: Any) -> bool:
    return (
        _is_list(value)
        and 1 <= len(value) <= MAX_INSTRUCTIONS
        and all(isinstance(name, str) and name in RULES for name in value)
    )


def _are_tables(value: Any) -> bool:
    return _is_list(value) and all(each is None or isinstance(each, dict) for each in value)


INSTRUCTIONS = Verifier(
    name="instructions",
    version=1,
    judge=judge_instructions,
    check_spec=check_instructions,
    domain="instructions that a program can check: IFEval's 25 types, strict and loose",
    fields=(
        Field(
            "instruction_id_list",
            "a list of 1 to 60 of the 25 instruction ids, such as punctuation:no_comma",
            True,
            check=_are_ids,
        ),
        Field("kwargs", "a list of tables, one for each instruction", True, check=_are_tables),
        Field("mode", "strict or loose", default="strict", check=lambda x: x in MODES),
        Field(
            "credit",
            "all_or_nothing or fraction",
            default="all_or_nothing",
            check=lambda x: x in CREDITS,
        ),
        Field(
            "stricter",
            "true or false: also demand what the instruction means beyond the public scorer's rule",
            default=False,
            check=lambda x: isinstance(x, bool),
        ),
    ),
    accepts="any text; only what stands outside the think block counts",
    partial_credit="credit = fraction: the share of instructions that are followed",
    known_errors=known_errors("instructions"),
    text_only=True,
    cached=True,
    modules=(
        "assay.verify.instructions.instructions",
        "assay.verify.instructions.rules",
        "assay.verify.instructions.arguments",
        "assay.verify.instructions.content",
        "assay.verify.instructions.format",
        "assay.verify.instructions.sentences",
        "assay.verify.instructions.words",
        "assay.verify.instructions.languages",
        "assay.types",
    ),
    packages=("langdetect",),
    extra="language",
)
