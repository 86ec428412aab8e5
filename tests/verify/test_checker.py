"""`assay.verify` on its own: `checker` as a plain function, what judging loads, the public names."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import assay.verify
from assay.errors import VerifierError
from assay.verify import checker


def test_every_public_name_has_a_docstring() -> None:
    for name in assay.verify.__all__:
        assert inspect.getdoc(getattr(assay.verify, name)), name
    assert list(assay.verify.__all__) == sorted(assay.verify.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        assay.verify.no_such_name  # pyright: ignore[reportAttributeAccessIssue]


def test_judging_loads_no_torch_and_no_other_package() -> None:
    code = """
        import sys
        from assay.verify import checker
        assert checker("math", num_workers=1)(r"\\\\boxed{5}", "5").correct
        packages = {name.split(".")[1] for name in sys.modules if name.startswith("assay.")}
        print(*sorted(packages), *({"torch", "transformers", "pydantic", "pyarrow"} & {*sys.modules}))
    """
    done = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["errors", "host", "think", "types", "verify"]


def test_checker_judges_a_text_against_an_answer() -> None:
    right = checker("math", num_workers=1)
    assert right(r"so \boxed{\frac12}", "0.5").reward == 1.0
    assert right("it is 6", 5).reward == 0.0
    assert right("it is 6", answer="6").correct
    with pytest.raises(VerifierError, match="answer: missing"):
        right("it is 6")
    with pytest.raises(VerifierError, match="did you mean math"):
        checker("mth")


def test_checker_takes_the_key_that_its_verifier_compares() -> None:
    countdown = checker("countdown", num_workers=1)
    assert countdown("<answer>2 * 3</answer>", numbers=[2, 3], target=6).correct
    assert checker("think_format")("<think>so</think>5").reward == 1.0
