"""A program in one process that asks another process, through `call_out`, for all that it does."""

from __future__ import annotations

from typing import Any

from assay.verify.sandbox import Answer, Outcome, Session, SubmissionError


def forward_to(session: Session) -> Any:
    """Return an ``on_call`` that does in ``session`` what another session asks for.

    An error there is raised here, and arguments changed there are changed here. A request that the
    other session does not survive raises `Forwarded`.
    """

    def on_call(verb: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        outcome = session.call(target, args, kwargs, verb=verb)
        if outcome.status == "exception":
            raise SubmissionError(outcome.error_names, outcome.error)
        if outcome.status != "ok":
            raise Forwarded(outcome)
        return Answer(outcome.value, outcome.args_after, outcome.kwargs_after, outcome.stdout)

    return on_call


class Forwarded(Exception):
    """A forwarded request failed; ``outcome`` says how. The session that asked is closed."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.status, outcome.error)
        self.outcome = outcome
