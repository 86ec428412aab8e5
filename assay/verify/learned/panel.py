"""A panel of judges that vote. The judges of a panel share a store of replies and a budget."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.endpoint.client import EndpointClient
from assay.endpoint.costs import Budget, count
from assay.endpoint.http_client import EndpointFailure
from assay.endpoint.replies import Reply, Usage, read_body
from assay.endpoint.settings import Settings, read_settings
from assay.types import NotJudgedReason
from assay.verify.learned.quoting import Quote, code_for
from assay.verify.learned.rubrics import Rubric, render
from assay.verify.learned.store import JudgeStore, reply_key


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote of a judge.

    finding: verdict, choice or score. A judge's finding is None if the vote is missing; ``reason``
        then gives the reason.
    detail: the judge's reasoning, or the error message of a missing vote.
    """

    finding: Any
    reason: NotJudgedReason = "error"
    detail: str = ""
    usage: Usage | None = None

    @classmethod
    def of(cls, said: tuple[Any, str], reply: Reply) -> Vote:
        """Return the vote of a parsed reply. said: (finding, reasoning)."""
        finding, reasoning = said
        return cls(finding, detail=reasoning, usage=reply.usage)


class Panel:
    """The judges of one configuration. The panel can be used from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = JudgeStore()
        budget = Budget(settings.budget)
        self.clients = [EndpointClient(judge, settings, budget) for judge in settings.judges]

    @property
    def store(self) -> JudgeStore:
        """The store of replies: the file of the settings, else of `keep_replies`, else memory."""
        # The store is looked up at each use, because `keep_replies` can be called after the panel
        # is made.
        path = self.settings.replies or _replies_path
        return self._store if path is None else _store_at(path)

    def votes(self, rubric: Rubric, quotes: Sequence[Quote]) -> list[Vote]:
        """Return all votes on the quoted texts, in the order of the judges."""
        deadline = time.monotonic() + self.settings.patience
        # A model can be listed several times, so its votes are numbered to get different keys.
        asked: Counter[str] = Counter()
        found: list[Vote] = []
        for client in self.clients:
            for _ in range(self.settings.votes):
                number = asked[client.judge.model]
                asked[client.judge.model] += 1
                found.append(self._vote(client, rubric, quotes, number, deadline))
        return found

    def _vote(
        self,
        client: EndpointClient,
        rubric: Rubric,
        quotes: Sequence[Quote],
        number: int,
        deadline: float,
    ) -> Vote:
        # The code contains the vote's number, so that two votes of a model are different requests.
        code = code_for(quotes, rubric.label, number)
        messages = render(rubric, quotes, code)
        schema = rubric.schema(code)

        def read(reply: Reply) -> tuple[Any, str]:
            return rubric.read(reply, code)

        model = client.judge.model
        key = reply_key(model, rubric.label, messages, client.judge.sampling, number)
        try:
            if (vote := self._stored(model, key, read)) is not None:
                return vote
            if self.settings.offline:
                return Vote(None, "unavailable", f"offline: no stored reply {key[:12]}")
            with self.store.asking(key, deadline) as mine:
                if not mine:
                    return Vote(None, "timeout", "an identical request took too long")
                # Another thread may have stored the reply while this thread waited.
                if (vote := self._stored(model, key, read)) is not None:
                    return vote
                said, reply, body = client.ask(messages, schema, read, deadline, key)
                self.store.put(key, body, model=model, rubric=rubric.label, vote=number)
                return Vote.of(said, reply)
        except EndpointFailure as error:
            return Vote(None, error.reason, error.detail)

    def _stored(self, model: str, key: str, read: Callable[[Reply], Any]) -> Vote | None:
        body = self.store.get(key)
        if body is None:
            return None
        try:
            reply = read_body(body)
            vote = Vote.of(read(reply), reply)
        except EndpointFailure:
            # Somebody edited the file.
            # An unreadable stored reply is replaced by the reply to a new request.
            return None
        count(model, reused=1)
        return vote

    def close(self) -> None:
        """Close the connections. After the call, the next request opens new connections."""
        for client in self.clients:
            client.close()


_lock = threading.Lock()
_panels: dict[Settings, Panel] = {}
_stores: dict[Path, JudgeStore] = {}
_replies_path: Path | None = None


def panel_for(options: Mapping[str, Any]) -> Panel:
    """Return the panel for a judge's options. Equal options share a panel. Raises VerifierError."""
    settings = read_settings(options)
    with _lock:
        if settings not in _panels:
            _panels[settings] = Panel(settings)
        return _panels[settings]


def keep_replies(path: Path, read_only: bool = False) -> None:
    """Store replies in ``path`` for judges without a configured file, until `close_judges`."""
    global _replies_path
    _store_at(path, read_only)
    _replies_path = path


def _store_at(path: Path, read_only: bool = False) -> JudgeStore:
    with _lock:
        if path not in _stores:
            _stores[path] = JudgeStore(path, read_only)
        return _stores[path]


def close_judges() -> None:
    """Close all connections and files.

    The next use of a judge creates new panels with full budgets.
    """
    global _replies_path
    with _lock:
        open_ones = [*_panels.values(), *_stores.values()]
        _replies_path = None
        _panels.clear()
        _stores.clear()
    for each in open_ones:
        each.close()
