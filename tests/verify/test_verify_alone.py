"""The room of verifiers stands alone: what it imports, what it loads, and its public names."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import assay.verify
from assay.errors import VerifierError
from assay.verify import checker

ROOM = Path(assay.verify.__file__).parent
# `removal` and `terminal` are single files over `errors`: deleting and printing have one place each.
NEEDED = ("types", "errors", "removal", "terminal", "verify")


def imported(text: str) -> set[str]:
    """Return the modules of Assay that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = {f"assay.{alias.name}" for alias in node.names}
            found |= names if node.module == "assay" else {node.module}
    return {name for name in found if name.split(".")[0] == "assay"}


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_it_imports_single_files_below_it_and_no_other_package(path: Path) -> None:
    others = {name for name in imported(path.read_text()) if name.split(".")[1] not in NEEDED}
    assert not others


def test_the_rule_finds_faults() -> None:
    text = "def f():\n    from assay.data import rows\nfrom assay import config\nimport assay.types"
    assert imported(text) == {"assay.data", "assay.config", "assay.types"}


def test_every_public_name_has_a_docstring() -> None:
    for name in assay.verify.__all__:
        assert inspect.getdoc(getattr(assay.verify, name)), name
    assert list(assay.verify.__all__) == sorted(assay.verify.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        assay.verify.no_such_name  # pyright: ignore[reportAttributeAccessIssue]


def test_judging_loads_no_torch_and_no_other_room() -> None:
    code = """
        import sys
        from assay.verify import checker
        assert checker("math", num_workers=1)(r"\\\\boxed{5}", "5").correct
        rooms = {name.split(".")[1] for name in sys.modules if name.startswith("assay.")}
        print(*sorted(rooms), *({"torch", "transformers", "pydantic", "pyarrow"} & {*sys.modules}))
    """
    done = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["errors", "removal", "terminal", "think", "types", "verify"]


def test_a_verifier_is_a_plain_function() -> None:
    right = checker("math", num_workers=1)
    assert right(r"so \boxed{\frac12}", "0.5").reward == 1.0
    assert right("it is 6", 5).reward == 0.0
    assert right("it is 6", answer="6").correct
    with pytest.raises(VerifierError, match="answer: missing"):
        right("it is 6")
    with pytest.raises(VerifierError, match="did you mean math"):
        checker("mth")


def test_a_plain_function_takes_the_key_that_its_verifier_compares() -> None:
    countdown = checker("countdown", num_workers=1)
    assert countdown("<answer>2 * 3</answer>", numbers=[2, 3], target=6).correct
    assert checker("think_format")("<think>so</think>5").reward == 1.0
