"""The verifier of what nothing can verify."""

import numpy as np

from assay.data.rows import read_problem
from assay.types import Completion, Group, Prompt
from assay.verify.service import VerifierService


def test_every_completion_has_the_score_0_and_is_judged() -> None:
    """A row needs nothing but its question."""
    problem = read_problem({"question": "Write a poem."}, "rows.jsonl:1", "p")
    said = tuple(Completion.from_text(text, id=f"p#0/{n}") for n, text in enumerate(("", "Roses")))
    with VerifierService("constant") as service:
        service.check_problem(problem)
        (verdicts,) = service.judge([Group(problem, Prompt("?", np.ones(1, np.int32)), said)])
    assert [(one.judged, one.score, one.reward) for one in verdicts] == [(True, 0.0, 0.0)] * 2
