"""Programming problems in the forms of public sets, as rows with ``prompt`` and ``tests``.

    {"text", "test_list", "test_setup_code", "challenge_test_list"}      MBPP
    {"prompt", "entry_point", "test"}                                    HumanEval
    {"problem", "inputs", "outputs"}                                     CodeContests

They are judged by ``code``: set ``data.verifier`` (or ``--verifier``) to it.
"""

from __future__ import annotations

from typing import Any

from assay.errors import DataError, message


def read_code_form(row: dict[str, Any], where: str) -> None:
    """Give a row of one of these forms its ``prompt`` and ``tests``, in place; leave others alone.

    MBPP's listed tests are shown in the prompt, as its authors do, and are public; its challenge
    tests are hidden. The tests of the other two are not in the prompt.
    """
    if "tests" in row:
        return
    if isinstance(row.get("text"), str) and isinstance(row.get("test_list"), (list, tuple)):
        _read_mbpp(row)
    elif isinstance(row.get("test"), str) and isinstance(row.get("entry_point"), str):
        row["tests"] = [{"check": row.pop("test")}]
        if isinstance(row.get("prompt"), str):
            row["prompt_code"] = row["prompt"]
    elif isinstance(row.get("inputs"), (list, tuple)) and isinstance(
        row.get("outputs"), (list, tuple)
    ):
        inputs, outputs = row.pop("inputs"), row.pop("outputs")
        if len(inputs) != len(outputs):
            found = f"{len(inputs)} inputs and {len(outputs)} outputs"
            raise DataError(message(where, found, "as many of the one as of the other"))
        row["tests"] = [
            {"stdin": stdin, "stdout": stdout}
            for stdin, stdout in zip(inputs, outputs, strict=True)
        ]
    if "task_id" in row and "id" not in row:
        row["id"] = row.pop("task_id")


def _read_mbpp(row: dict[str, Any]) -> None:
    shown = [str(test).replace("\r\n", "\n") for test in row.pop("test_list")]
    text = row.pop("text").strip()
    row["prompt"] = f"{text}\nYour program must pass these tests:\n" + "\n".join(shown)
    row["tests"] = [{"assert": test} for test in shown]
    if hidden := row.pop("challenge_test_list", None):
        row["hidden_tests"] = [{"assert": test} for test in hidden]
    if setup := row.pop("test_setup_code", None):
        row["setup"] = setup
