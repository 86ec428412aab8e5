"""The verifier of a row: its own, or that of its first tag that has one, or the default."""

from __future__ import annotations

import pytest

from assay.errors import VerifierError
from assay.types import Problem
from assay.verify.service import VerifierService

BY_TAG = {"short": "length_target", "chat": "regex", "other": "exact"}
OPTIONS = {"regex": {"pattern": "hello.*"}, "length_target": {"target_words": 1}}


@pytest.mark.parametrize(
    ("tags", "own", "expected"),
    [
        ((), None, "math"),
        (("sums",), None, "math"),
        (("chat",), None, "regex"),
        (("sums", "other", "chat"), None, "exact"),
        (("chat",), "exact", "exact"),
    ],
)
def test_a_row_is_judged_by_its_own_its_tags_or_the_default_verifier(
    tags: tuple[str, ...], own: str | None, expected: str
) -> None:
    problem = Problem("p", "q", {"answer": "5"}, verifier=own, tags=tags)
    with VerifierService(by_tag=BY_TAG, options=OPTIONS, num_workers=1) as service:
        service.check_problem(problem)
        (verdict,) = service.judge_text([(problem, "hello 5")])
        assert verdict.verifier.partition("@")[0] == expected
        assert {"math", *BY_TAG.values()} <= {*service.describe()}


def test_a_row_must_have_what_the_verifier_of_its_tag_reads() -> None:
    with VerifierService(by_tag={"chat": "exact"}, num_workers=1) as service:
        with pytest.raises(VerifierError, match="answer"):
            service.check_problem(Problem("p", "q", {}, tags=("chat",)))
        service.check_problem(Problem("p", "q", {"answer": "5"}, tags=("chat",)))
    with pytest.raises(VerifierError, match="no_such"):
        VerifierService(by_tag={"chat": "no_such"})


def test_code_that_a_tag_names_is_the_configurations() -> None:
    with VerifierService(by_tag={"chat": "planted.rewards:kind"}, num_workers=1) as service:
        assert service.allows("planted.rewards:kind") and not service.allows("planted.rewards:un")
