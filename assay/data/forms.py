"""Table of the published row formats ("forms"): keys, reader functions, verifiers and data sets.

A form is recognized by its keys and, where keys are not enough, by a predicate on the row. If
several forms fit a row, the first form in the table reads the row. docs/data.md has the same table,
written by tools/form_reference.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.data import benchmark_rows as benchmarks
from assay.data import call_rows, code_rows, contest_rows, math_rows
from assay.data import rewarded_rows as rewarded
from assay.errors import DataError, cause, message, slip_of

Row = dict[str, Any]
UNKNOWN_LICENCE = "see its card"


def _rename_nothing(row: Row, where: str) -> None:
    """Leave a row unchanged, because `assay.data.rows.read_problem` reads the keys of the row's
    form.
    """


def _always(row: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """One published form of rows.

    name: name of the form, as printed. keys: keys that every row of the form has; ``a|b`` stands
    for one of several keys. verifier: names of the verifiers that judge rows of the form, the most
    frequent verifier first. in_row: whether the reader sets the verifier of each row that ``math``
    does not judge; otherwise ``data.verifier`` decides. sets: data sets in this form, each with the
    licence on its card. read: function that converts a row in place. fits: predicate that a row
    with the form's keys must also satisfy. refuses: description of the rows of this form that the
    reader refuses.
    """

    name: str
    keys: tuple[str, ...]
    verifier: str
    sets: tuple[tuple[str, str], ...]
    read: Callable[[Row, str], None] = _rename_nothing
    fits: Callable[[Mapping[str, Any]], bool] = _always
    in_row: bool = False
    refuses: str = ""

    def missing(self, row: Mapping[str, Any]) -> list[str]:
        """Return the keys of the form that a row lacks."""
        return [key for key in self.keys if not any(one in row for one in key.split("|"))]


def _lists(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: all(isinstance(row.get(key), list | tuple) for key in keys)


def _texts(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: all(isinstance(row.get(key), str) for key in keys)


def _has_tests(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("input_output"), str | Mapping)


def _is_gsm8k(row: Mapping[str, Any]) -> bool:
    return isinstance(row["answer"], str) and "####" in row["answer"]


def _is_zebra_choice(row: Mapping[str, Any]) -> bool:
    return isinstance(row["answer"], str) and isinstance(row["choices"], list | tuple)


def _is_grid(row: Mapping[str, Any]) -> bool:
    return isinstance(row["solution"], Mapping)


# A program row with the key `tests` has Assay's own form, not a published form.
_PROGRAMS = (
    Form(
        "LiveCodeBench",
        ("question_content", "public_test_cases"),
        "code",
        (("LiveCodeBench code_generation, code_generation_lite", UNKNOWN_LICENCE),),
        contest_rows.read_live_code_bench,
        refuses="private tests in a pickle of anything but one text; the pickle is never executed",
    ),
    Form(
        "Codeforces of Open-R1",
        ("description", "official_tests"),
        "code, program",
        (("open-r1/codeforces", "CC BY 4.0"),),
        contest_rows.read_codeforces,
        refuses="interactive problems, input from files, answers that need a checker program",
    ),
    Form(
        "CodeContests, published keys",
        ("description", "public_tests", "private_tests"),
        "code",
        (("deepmind/code_contests", "CC BY 4.0"),),
        contest_rows.read_code_contests,
        refuses="input and output in files",
    ),
    Form(
        "KodCode",
        ("question", "solution", "test|test_code"),
        "code",
        (("KodCode-V1", "CC BY-NC 4.0"),),
        contest_rows.read_kodcode,
        contest_rows.is_kodcode,
        refuses="tests that use of pytest more than raises, approx and parametrize, or that do not "
        "import from solution",
    ),
    Form(
        "APPS, TACO",
        ("input_output",),
        "code",
        (("APPS", "MIT"), ("TACO", "Apache 2.0")),
        code_rows.read_apps,
        _has_tests,
        refuses="rows without tests",
    ),
    Form(
        "MBPP",
        ("text", "test_list"),
        "code",
        (("MBPP", "CC BY 4.0"),),
        code_rows.read_mbpp,
        lambda row: isinstance(row["text"], str) and isinstance(row["test_list"], list | tuple),
    ),
    Form(
        "sanitized MBPP, MBPP+",
        ("prompt", "test_list", "test_imports"),
        "code",
        (("MBPP sanitized", "CC BY 4.0"), ("MBPP+", "Apache 2.0")),
        code_rows.read_mbpp_plus,
        _lists("test_list", "test_imports"),
    ),
    Form(
        "HumanEval",
        ("test", "entry_point"),
        "code",
        (("HumanEval", "MIT"),),
        code_rows.read_humaneval,
        _texts("test", "entry_point"),
    ),
    Form(
        "CodeContests",
        ("inputs", "outputs"),
        "code",
        (("CodeContests", "CC BY 4.0"),),
        code_rows.read_code_contests,
        _lists("inputs", "outputs"),
    ),
)
_REWARDED = (
    Form(
        "verifiable programs and SYNTHETIC",
        ("verification_info", "prompt|problem|problem_statement"),
        "math, code, program, instructions, gym, json_schema",
        (
            ("SYNTHETIC-1", "Apache 2.0"),
            ("SYNTHETIC-2", UNKNOWN_LICENCE),
            ("open-r1/verifiable-coding-problems-python", UNKNOWN_LICENCE),
        ),
        rewarded.read_synthetic,
        in_row=True,
        refuses="tasks with a scorer of the set's own, such as unscramble and formatask",
    ),
    Form(
        "RLVR of Tulu 3",
        ("messages", "ground_truth", "dataset"),
        "math, instructions, code, exact",
        (
            ("RLVR-GSM, RLVR-MATH, RLVR-IFeval and their mixture", "ODC-BY (the mixture)"),
            ("IF_multi_constraints_upto5", "ODC-BY"),
        ),
        rewarded.read_tulu,
        in_row=True,
        refuses="the constraints verify_paragraph_count and validate_choice, and those of IFBench",
    ),
    Form(
        "verl",
        ("prompt", "reward_model"),
        "math, code, instructions, judge",
        (("DAPO-Math-17k", "Apache 2.0"),),
        rewarded.read_verl,
        rewarded.is_verl,
        in_row=True,
    ),
    Form(
        "SWE-bench",
        ("repo", "base_commit", "problem_statement"),
        "repository",
        (("SWE-bench and sets in its form", UNKNOWN_LICENCE),),
        contest_rows.read_swe,
        in_row=True,
        refuses="rows without files and tests: a patch cannot be judged without its repository",
    ),
    Form(
        "xLAM",
        ("query", "tools", "answers"),
        "function_calls",
        (("xlam-function-calling-60k", "CC BY 4.0"),),
        call_rows.read_xlam,
        in_row=True,
    ),
    Form(
        "ToolACE",
        ("system", "conversations"),
        "function_calls",
        (("ToolACE", "Apache 2.0"),),
        call_rows.read_toolace,
        in_row=True,
        refuses="rows that do not begin with a request and a reply, and replies with words around "
        "their calls; later turns are not read",
    ),
)
_BENCHMARKS = (
    Form(
        "ZebraLogic, grids",
        ("puzzle", "solution"),
        "json_schema",
        (("ZebraLogicBench grid_mode", UNKNOWN_LICENCE),),
        benchmarks.read_zebra_grid,
        _is_grid,
        in_row=True,
        refuses="the public rows, whose solutions are hidden",
    ),
    Form(
        "ZebraLogic, choices",
        ("puzzle", "question", "choices", "answer"),
        "choice",
        (("ZebraLogicBench mc_mode", UNKNOWN_LICENCE),),
        benchmarks.read_zebra_choices,
        _is_zebra_choice,
        in_row=True,
        refuses="the public rows, whose answers are hidden",
    ),
    Form(
        "GPQA",
        ("Question", "Correct Answer"),
        "choice",
        (("GPQA", "CC BY 4.0"),),
        benchmarks.read_gpqa,
        in_row=True,
    ),
    Form(
        "DROP",
        ("passage", "answers_spans|answer"),
        "drop",
        (("DROP", "CC BY-SA 4.0"),),
        benchmarks.read_drop,
        benchmarks.is_drop,
        in_row=True,
    ),
    Form(
        "BFCL",
        ("question", "function"),
        "function_calls",
        (("BFCL, single-turn Python categories", "Apache 2.0"),),
        benchmarks.read_bfcl,
        benchmarks.is_bfcl,
        in_row=True,
        refuses="several turns, and the category relevance",
    ),
    Form(
        "AIME",
        ("Problem|Question", "Answer"),
        "math",
        (("AIME", UNKNOWN_LICENCE),),
        benchmarks.read_aime,
    ),
    Form(
        "ARC",
        ("question", "choices", "answerKey"),
        "choice",
        (("ARC", "CC BY-SA 4.0"),),
        benchmarks.read_arc,
        benchmarks.is_arc,
        in_row=True,
    ),
    Form(
        "MMLU",
        ("question", "choices", "answer"),
        "choice",
        (("MMLU", "MIT"),),
        benchmarks.read_mmlu,
        benchmarks.is_mmlu,
        in_row=True,
    ),
    Form(
        "MMLU-Pro",
        ("question", "options", "answer_index"),
        "choice",
        (("MMLU-Pro", "MIT"),),
        benchmarks.read_mmlu_pro,
        benchmarks.is_mmlu_pro,
        in_row=True,
    ),
    Form(
        "SimpleQA",
        ("problem", "answer", "metadata"),
        "judge",
        (("SimpleQA", "MIT"),),
        benchmarks.read_simpleqa,
        benchmarks.is_simpleqa,
    ),
    Form(
        "IFEval",
        ("prompt", "instruction_id_list", "kwargs"),
        "instructions",
        (("IFEval", "Apache 2.0"), ("IFBench", "ODC-BY")),
        refuses="IFBench's own 58 constraints: the verifier checks IFEval's 25",
    ),
)
_MATH = (
    Form(
        "NuminaMath-1.5, OpenR1-Math",
        ("problem", "answer", "question_type"),
        "math",
        (("NuminaMath-1.5", "Apache 2.0"), ("OpenR1-Math-220k", "Apache 2.0")),
        math_rows.read_numina,
        refuses="proofs, and answers that were not found",
    ),
    Form(
        "NuminaMath-CoT",
        ("problem", "solution", "messages"),
        "math",
        (("NuminaMath-CoT", "Apache 2.0"),),
        math_rows.read_numina_cot,
        refuses="solutions without a boxed answer",
    ),
    Form(
        "Big-Math",
        ("problem", "answer", "llama8b_solve_rate"),
        "math",
        (("Big-Math-RL-Verified", "Apache 2.0"),),
        math_rows.read_big_math,
    ),
    Form(
        "MATH-500",
        ("problem", "answer", "unique_id"),
        "math",
        (("MATH-500", "MIT"),),
        benchmarks.read_math_500,
    ),
    Form(
        "MATH",
        ("problem", "answer|solution"),
        "math",
        (("MATH", "MIT"), ("DeepScaleR-Preview-Dataset", "MIT")),
    ),
    Form("GSM8K", ("question", "answer"), "math", (("GSM8K", "MIT"),), fits=_is_gsm8k),
)
ASSAY = Form("Assay", ("prompt|question|problem",), "any", ())
FORMS: tuple[Form, ...] = (*_PROGRAMS, *_REWARDED, *_BENCHMARKS, *_MATH, ASSAY)
"""All forms. The first one that fits a row reads it."""


def recognize(row: Mapping[str, Any]) -> Form | None:
    """Return the published form of a row, or None."""
    for form in FORMS:
        if not form.missing(row) and not ("tests" in row and form in _PROGRAMS) and form.fits(row):
            return form
    return None


def read_form(row: Row, where: str) -> None:
    """Convert a row of a published form in place; raises DataError if the form refuses the row."""
    form = recognize(row)
    if form is None:
        return
    try:
        form.read(row, where)
    except DataError:
        raise
    # Readers report unexpected values themselves; a row with unexpected types ends here.
    except (AttributeError, TypeError, LookupError, ValueError, RecursionError) as error:
        found, accepted = f"a row that cannot be read ({cause(error)})", f"the form {form.name}"
        raise DataError(message(where, found, accepted)) from error
    # Sets of programs have the row id under task_id, unlike MATH-500.
    if form in _PROGRAMS and "task_id" in row and "id" not in row:
        row["id"] = row.pop("task_id")


def nearest_form(row: Mapping[str, Any], least: int = 1) -> str:
    """Return advice for a row of no published form: the nearest form and its missing key, or "".

    The nearest form has the most keys in common with the row; ties go to the form that lacks the
    fewest keys. least: minimum number of keys that a row and a form must have in common.
    """
    best: tuple[int, int, str] | None = None
    for form in FORMS:
        missing = form.missing(row)
        common = len(form.keys) - len(missing)
        # One common key, such as "solution", says little about a form of three keys.
        # The number of common keys therefore has a minimum.
        if common < least or not missing or common * 2 < len(form.keys):
            continue
        slips = ((name, slip_of(name, key.split("|"))) for key in missing for name in row)
        renames = [f"; rename {name} to {slip}" for name, slip in slips if slip]
        lacks = " and ".join(key.replace("|", " or ") for key in missing)
        said = f"nearest form: {form.name}, which also has {lacks}"
        found = (common, -len(missing), said + "".join(renames[:1]))
        if best is None or found[:2] > best[:2]:
            best = found
    return best[2] if best else ""
