"""A test program in one process that uses the module of another as its own."""

from __future__ import annotations

from typing import Any

from assay.verify.sandbox import Answer, Handle, Outcome, Session, SubmissionError


def forward_to(session: Session) -> Any:
    """Return an ``on_call`` that does in ``session`` what another session asks for.

    A program loaded with it uses the other module's objects as its own: ``call_out("name", args, kwargs)``
    calls a global there; an object that comes back is a proxy, of which calls, attributes, operators and
    iteration go through; an error there is raised here, and arguments changed there are changed here.
    Comparisons go through as well, so this is no way to judge: a class may say that it equals everything.
    A request that the other session does not survive raises `Forwarded`.
    """

    def on_call(name: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        if type(name) is Handle:
            outcome = session.call(name, args, kwargs)
        elif type(name) is not str:
            raise SubmissionError("TypeError", "no name")
        elif name == "getattr":
            outcome = session.get(*args)
        elif name.startswith("__") and args and type(args[0]) is Handle:
            outcome = session.call_method(args[0], name, args[1:], kwargs)
        else:
            outcome = session.call(name, args, kwargs)
        if outcome.status == "exception":
            raise SubmissionError(outcome.error_type, outcome.error)
        if outcome.status != "ok":
            raise Forwarded(outcome)
        return Answer(outcome.value, outcome.args_after)

    return on_call


class Forwarded(Exception):
    """A forwarded request failed; ``outcome`` says how. The session that asked is closed."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.status, outcome.error)
        self.outcome = outcome
