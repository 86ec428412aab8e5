"""A panel: every judge of a configuration with its votes, one store of replies, one budget."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from assay.types import NotJudgedReason
from assay.verify.judge.client import JudgeClient
from assay.verify.judge.costs import Budget, count_reused
from assay.verify.judge.quoting import Quote
from assay.verify.judge.replies import (
    JudgeTrouble,
    Usage,
    read_body,
    read_choice,
    read_score,
    read_verdict,
    reasoning_of,
)
from assay.verify.judge.rubrics import PAIR_CHOICES, Rubric, render
from assay.verify.judge.settings import Judge, Settings, read_settings
from assay.verify.judge.store import JudgeStore, reply_key

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Vote(Generic[T]):
    """What one judge said once.

    finding: None where it gave no judgement, for ``reason``. detail: its reasoning, or what is wrong.
    """

    finding: T | None
    reason: NotJudgedReason = "error"
    detail: str = ""
    usage: Usage | None = None


class Panel:
    """Asks the judges of some settings; safe from any thread."""

    def __init__(self, settings: Settings, store: JudgeStore | None = None) -> None:
        self.settings = settings
        self._store = JudgeStore() if store is None else store
        self._is_given = store is not None
        budget = Budget(settings.budget)
        self.clients = [JudgeClient(judge, settings, budget) for judge in settings.judges]

    @property
    def store(self) -> JudgeStore:
        """Where its replies are kept: as the settings say, else where `keep_replies` did."""
        if self._is_given:
            return self._store
        if self.settings.replies is not None:
            return _store_at(self.settings.replies)
        return self._store if _default is None else _default

    def verdicts(self, rubric: Rubric, quotes: Sequence[Quote]) -> list[Vote[str]]:
        """Return every vote on a rubric of verdicts, or of pairs, in the order of the judges."""
        if rubric.kind == "verdict":
            return self._votes(rubric, quotes, read_verdict)
        return self._votes(rubric, quotes, lambda text: read_choice(text, PAIR_CHOICES))

    def scores(self, rubric: Rubric, quotes: Sequence[Quote]) -> list[Vote[float]]:
        """Return every vote on a rubric of scores, in the units of its scale."""
        return self._votes(rubric, quotes, lambda text: read_score(text, *rubric.scale))

    def _votes(
        self, rubric: Rubric, quotes: Sequence[Quote], read: Callable[[str], T]
    ) -> list[Vote[T]]:
        deadline = time.monotonic() + self.settings.patience
        asked: Counter[str] = Counter()  # a model may stand in the list more than once
        found: list[Vote[T]] = []
        for client in self.clients:
            for _ in range(self.settings.votes):
                number = asked[client.judge.model]
                asked[client.judge.model] += 1
                found.append(self._vote(client, rubric, quotes, number, read, deadline))
        return found

    def _vote(
        self,
        client: JudgeClient,
        rubric: Rubric,
        quotes: Sequence[Quote],
        number: int,
        read: Callable[[str], T],
        deadline: float,
    ) -> Vote[T]:
        messages = render(rubric, quotes, number)
        key = _key(client.judge, rubric, messages, number)
        try:
            if (vote := self._stored(client, key, read)) is not None:
                return vote
            if self.settings.offline:
                return Vote(None, "unavailable", f"offline: no stored reply {key[:12]}")
            with self.store.asking(key, deadline) as mine:
                if not mine:
                    return Vote(None, "timeout", "an equal request took too long")
                if (vote := self._stored(client, key, read)) is not None:
                    return vote
                finding, reply, body = client.ask(messages, rubric.schema, read, deadline, key)
                self.store.put(
                    key, body, model=client.judge.model, rubric=rubric.label, vote=number
                )
                return Vote(finding, detail=reasoning_of(reply.text), usage=reply.usage)
        except JudgeTrouble as error:
            return Vote(None, error.reason, error.detail)

    def _stored(self, client: JudgeClient, key: str, read: Callable[[str], T]) -> Vote[T] | None:
        body = self.store.get(key)
        if body is None:
            return None
        try:
            reply = read_body(body)
            vote = Vote(read(reply.text), detail=reasoning_of(reply.text), usage=reply.usage)
        except JudgeTrouble:  # the file was edited: ask again
            return None
        count_reused(client.judge.model)
        return vote

    def close(self) -> None:
        """Close the connections; the next question opens them again."""
        for client in self.clients:
            client.close()


def _key(judge: Judge, rubric: Rubric, messages: Sequence[Mapping[str, str]], number: int) -> str:
    return reply_key(judge.model, rubric.label, messages, judge.sampling, number)


_lock = threading.Lock()
_panels: dict[Settings, Panel] = {}
_stores: dict[Path, JudgeStore] = {}
_default: JudgeStore | None = None


def panel_for(options: Mapping[str, Any]) -> Panel:
    """Return the panel that some options ask for: one for equal settings; raises VerifierError."""
    settings = read_settings(options)
    with _lock:
        found = _panels.get(settings)
    if found is None:
        made = Panel(settings)
        with _lock:
            found = _panels.setdefault(settings, made)
    return found


def keep_replies(path: Path, read_only: bool = False) -> None:
    """Keep the replies of judges whose options name no file here, until `close_judges`."""
    global _default
    if _default is not None:
        _default.close()
    _default = JudgeStore(path, read_only)


def _store_at(path: Path) -> JudgeStore:
    with _lock:
        if path not in _stores:
            _stores[path] = JudgeStore(path)
        return _stores[path]


def close_judges() -> None:
    """Close every connection and file; panels and their budgets start anew when next used."""
    global _default
    with _lock:
        panels, stores = list(_panels.values()), list(_stores.values())
        stores += [_default] if _default is not None else []
        _default = None
        _panels.clear()
        _stores.clear()
    for panel in panels:
        panel.close()
    for store in stores:
        store.close()
