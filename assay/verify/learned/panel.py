"""A panel: every judge of a configuration with its votes, one store of replies, one budget."""

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
    """What one judge said once.

    finding: a verdict, a choice or a score; None where it gave none, for ``reason``. detail: its
    reasoning, or what is wrong.
    """

    finding: Any
    reason: NotJudgedReason = "error"
    detail: str = ""
    usage: Usage | None = None

    @classmethod
    def of(cls, said: tuple[Any, str], reply: Reply) -> Vote:
        """Return the vote of a reply that was read; said: its finding and its reasoning."""
        finding, reasoning = said
        return cls(finding, detail=reasoning, usage=reply.usage)


class Panel:
    """Asks the judges of some settings; safe from any thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._store = JudgeStore()
        budget = Budget(settings.budget)
        self.clients = [EndpointClient(judge, settings, budget) for judge in settings.judges]

    @property
    def store(self) -> JudgeStore:
        """Where its replies are kept: as the settings say, else where `keep_replies` did."""
        path = self.settings.replies or _kept_at
        return self._store if path is None else _store_at(path)

    def votes(self, rubric: Rubric, quotes: Sequence[Quote]) -> list[Vote]:
        """Return every vote, in the order of the judges: a verdict, a choice or a score each."""
        deadline = time.monotonic() + self.settings.patience
        asked: Counter[str] = Counter()  # a model may stand in the list more than once
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
        code = code_for(quotes, rubric.label, number)  # another vote has another code
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
                    return Vote(None, "timeout", "an equal request took too long")
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
        except EndpointFailure:  # the file was edited: ask again
            return None
        count(model, reused=1)
        return vote

    def close(self) -> None:
        """Close the connections; the next question opens them again."""
        for client in self.clients:
            client.close()


_lock = threading.Lock()
_panels: dict[Settings, Panel] = {}
_stores: dict[Path, JudgeStore] = {}
_kept_at: Path | None = None


def panel_for(options: Mapping[str, Any]) -> Panel:
    """Return the panel that some options ask for: one for equal settings; raises VerifierError."""
    settings = read_settings(options)
    with _lock:
        if settings not in _panels:
            _panels[settings] = Panel(settings)
        return _panels[settings]


def keep_replies(path: Path, read_only: bool = False) -> None:
    """Keep the replies of judges whose options name no file here, until `close_judges`."""
    global _kept_at
    _store_at(path, read_only)
    _kept_at = path


def _store_at(path: Path, read_only: bool = False) -> JudgeStore:
    with _lock:
        if path not in _stores:
            _stores[path] = JudgeStore(path, read_only)
        return _stores[path]


def close_judges() -> None:
    """Close every connection and file; panels and their budgets start anew when next used."""
    global _kept_at
    with _lock:
        open_ones = [*_panels.values(), *_stores.values()]
        _kept_at = None
        _panels.clear()
        _stores.clear()
    for each in open_ones:
        each.close()
