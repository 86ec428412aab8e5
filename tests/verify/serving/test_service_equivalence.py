"""The service, with its executors, cache and stages, against verifiers called one after the other."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import planted_verifiers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.base import Part, Verifier, as_part, resolve
from assay.verify.expression import BUILT_IN, parse_expression
from assay.verify.service import VerifierService


@pytest.fixture(scope="module", autouse=True)
def planted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.verify.serving.calling.MAX_ALIKE", 1000)
        patch.setattr(planted_verifiers, "BATCH_SECONDS", 0.0)
        for name, place in planted_verifiers.NAMES.items():
            patch.setitem(BUILT_IN, name, place)
        yield


def called(verifier: Verifier, group: Group, firsts: Sequence[Part | None]) -> list[Part]:
    """Every sibling's part, by plain calls; an error is not judged."""
    size = len(group.completions)
    try:
        if verifier.takes in ("completion", "batch"):
            found: list[Part] = []
            for one in group.completions:
                pair = (group.problem, one)
                try:
                    if verifier.takes == "batch":
                        found.append(as_part(verifier.judge([pair])[0]))
                    else:
                        found.append(as_part(verifier.judge(*pair)))
                except (Exception, SystemExit):
                    found.append(Part.not_judged("error", ""))
            return found
        if verifier.takes == "verdicts":
            return list(map(as_part, verifier.judge(group.problem, group, firsts)))
        return list(map(as_part, verifier.judge(group.problem, group)))
    except RuntimeError:
        return [Part.not_judged("error", "")] * size


def right(part: Part) -> bool:
    return part.value is not None and part.value >= 1.0


def plainly(expression: str, group: Group) -> list[tuple[float | None, frozenset[str]]]:
    """(reward or None, names of the verifiers that judged) of each completion."""
    size = len(group.completions)
    rewards: list[list[float | None]] = [[] for _ in range(size)]
    judged: list[set[str]] = [set() for _ in range(size)]
    firsts: list[Part | None] = []
    scores: list[float] = []
    for number, term in enumerate(parse_expression(expression)):
        columns = [called(resolve(name), group, firsts) for name in term.names]
        weight = term.resolved(resolve(term.names[0]).weight if number else 1.0).weight
        for sibling in range(size):
            chosen: Part | None = None
            best: Part | None = None
            for name, column in zip(term.names, columns, strict=True):
                part = column[sibling]
                judged[sibling] |= {name} if part.value is not None else set()
                chosen = part
                if part.value is not None and (best is None or part.value > (best.value or 0)):
                    best = part
                if right(part):
                    best = part
                    break
            assert chosen is not None
            chosen = best if chosen.value is not None else chosen
            assert chosen is not None
            if number == 0:
                firsts.append(chosen)
                scores.append(0.0 if chosen.value is None else chosen.value)
            value, matters = chosen.value, weight != 0.0 or number == 0
            rewards[sibling].append(
                (None if matters else 0.0) if value is None else (weight or 0.0) * value
            )
    return [
        (
            None if None in found or not 0 <= score <= 1 else math.fsum(filter(None, found)),
            frozenset(names),
        )
        for found, names, score in zip(rewards, judged, scores, strict=True)
    ]


def as_found(verdict: Verdict) -> tuple[float | None, frozenset[str]]:
    names = {name for name in verdict.components if name in planted_verifiers.NAMES}
    return verdict.reward, frozenset(names)


chains = st.lists(
    st.sampled_from(["inlined", "threaded", "kept", "grouped"]), min_size=1, max_size=3, unique=True
).map("|".join)
weights = st.sampled_from(["", "*0", "*0.5", "*2"])
later = st.tuples(st.one_of(chains, st.sampled_from(["share", "device"])), weights).map("".join)
expressions = st.tuples(chains, weights, st.lists(later, max_size=3)).map(
    lambda parts: " + ".join([parts[0] + parts[1], *parts[2]])
)
texts = st.lists(
    st.sampled_from(["good", "bad", "half", "raise", "down", "leave", "fine", "x"]),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60)
@given(expressions, st.lists(texts, min_size=1, max_size=4))
def test_the_service_agrees_with_direct_calls(expression: str, batch: list[list[str]]) -> None:
    prompt = Prompt("q", np.zeros(1, np.int32))
    groups = [
        Group(
            Problem(f"p{n}", "q", {"good": "fine"} if n % 2 else {}),
            prompt,
            tuple(Completion.from_text(text, f"p{n}#0/{s}") for s, text in enumerate(row)),
        )
        for n, row in enumerate(batch)
    ]
    expected = [plainly(expression, group) for group in groups]
    with VerifierService(expression) as service:
        assert service.judge([]) == []
        first = service.judge(groups)
        found: list[list[tuple[Verdict, ...]]] = [first]
        threads = [
            threading.Thread(target=lambda: found.append(service.judge(groups))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = service.stats["verifiers"]
        assert not service.engine.pool.workers
    assert len(found) == 4
    for verdicts in found:
        for group, wanted in zip(verdicts, expected, strict=True):
            assert [(None if r is None else pytest.approx(r), n) for r, n in wanted] == [
                as_found(verdict) for verdict in group
            ]
    assert all(each["count"] % 4 == 0 for each in counts.values())
