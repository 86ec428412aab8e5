"""Verifier ``instructions``: check IFEval's verifiable instructions.

The verifier checks the 25 instruction types of Zhou et al., "Instruction-Following Evaluation for
Large Language Models", arXiv:2311.07911, section 2, strictly and loosely. Verdicts equal those of
the paper's public scorer, as ``bench/instruction_agreement.py`` measures. The verdicts differ from
the public scorer's in these cases:

- The language detector has a fixed seed.
- If the letter to count is a sign such as ``#``, the sign is counted. If the letter argument is
  missing, the public scorer counts a random letter.
- A missing argument and the argument 0 are used literally. The public scorer replaces some missing
  instruction arguments by random values.
- Keywords are plain text. The public scorer reads keywords as regular expressions and therefore
  fails on ``C++``.
- An invisible character is not a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.errors import VerifierError, message
from assay.host.fields import Field, choice, flag, list_of
from assay.types import Completion, Problem
from assay.verify.base import Part, Verifier, spec_check
from assay.verify.instructions.reading import Instruction, read_instruction

MAX_INSTRUCTIONS = 60


IDS = Field(
    "instruction_id_list",
    "a list of 1 to 60 of the 25 instruction ids, such as punctuation:no_comma",
    needed=True,
    check=list_of(lambda _: True, MAX_INSTRUCTIONS, least=1),
)
TABLES = Field(
    "kwargs",
    "a list of tables, one for each instruction",
    needed=True,
    check=list_of(lambda each: each is None or isinstance(each, dict), MAX_INSTRUCTIONS),
)
MODE = choice("mode", "strict", "loose")
CREDIT = choice("credit", "all_or_nothing", "fraction")
STRICTER = flag(
    "stricter",
    "false, true: also check the instruction's meaning, beyond the public scorer's rule",
)


def judge_instructions(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the answer follows every instruction, else 0.

    Reads ``instruction_id_list``, ``kwargs``, ``mode``, ``credit`` and ``stricter`` from the spec.
    The verdict's detail names the violated instructions. The components ``strict`` and ``loose``
    are 1 if the completion follows all instructions in that mode. The component ``share_followed``,
    and a component for each instruction's id (0 or 1), use the configured mode.
    """
    instructions = read_instructions(problem)
    loosely, in_part = MODE.read(problem) == "loose", CREDIT.read(problem) == "fraction"
    stricter = STRICTER.read(problem)
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
    # Line breaks after a think block belong to the chat template.
    # A rule must not read the line breaks around an answer as an empty first line or paragraph.
    return text if len(text) == len(completion.text) else text.lstrip("\r\n")


def _by_name(instructions: Sequence[Instruction], followed: Sequence[bool]) -> dict[str, float]:
    """Map each instruction id to 1 if all instructions with this id are followed, else to 0."""
    found: dict[str, float] = {}
    for each, ok in zip(instructions, followed, strict=True):
        found[each.name] = min(found.get(each.name, 1.0), float(ok))
    return found


def read_instructions(problem: Problem) -> tuple[Instruction, ...]:
    """Return the instructions that a problem's spec lists.

    Raises VerifierError, with the position in the list, for an invalid instruction.
    """
    where = f"problem {problem.id}: spec"
    names, tables = IDS.read(problem), TABLES.read(problem)
    if len(names) != len(tables):
        accepts = f"{len(names)}, one for each of instruction_id_list"
        raise VerifierError(message(f"{where}.kwargs", f"{len(tables)} tables", accepts))
    pairs = zip(names, tables, strict=True)
    return tuple(read_instruction(name, each, where, i) for i, (name, each) in enumerate(pairs))


INSTRUCTIONS = Verifier(
    name="instructions",
    version=1,
    judge=judge_instructions,
    check_spec=spec_check(read_instructions),
    domain="instructions that a program can check: IFEval's 25 types, strict and loose",
    fields=(IDS, TABLES, MODE, CREDIT, STRICTER),
    accepts="any text; only text outside the think block counts",
    partial_credit="credit = fraction: the share of instructions that are followed",
    text_only=True,
    cached=True,
    packages=("langdetect",),
    extra="language",
)
