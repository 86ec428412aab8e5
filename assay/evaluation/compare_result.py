"""Result of a comparison of two models, as values and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from assay.host.terminal import lined
from assay.run.intervals import share_words
from assay.run.paired import Gain, Paired, holm
from assay.session.evaluate import Evaluation
from assay.verify.learned.pairwise import WinRate

# The smallest printed p value, because smaller values are below the rounding error of the sums.
_LEAST_P = 1e-6
SHOWN_FLIPS = 5


@dataclass(frozen=True, slots=True)
class ComparedSet:
    """Difference between model A and model B on one set of problems.

    a, b: evaluations of model A and model B; ``pass_at_1`` is the accuracy. gain: accuracy of B
    minus accuracy of A on problems judged for both models, with a 95 % interval; None if no problem
    was judged for both. p_value: exact test of no difference (`sign_flip_p`; McNemar's test with
    one completion per problem). p_value_of_all: the p value after Holm's correction for the number
    of sets. better, worse: ids of problems on which model B is better or worse than model A,
    largest difference first. characters: mean completion length of A and of B in characters. wins:
    share of pairs in which the preference judge prefers B; a tie counts half. wins_at_equal_length:
    win rate of B after adjustment for the lengths of the completions. not_compared: reason why the
    preference judge gave no result.
    left_out: ids of problems whose prompts do not fit the context of one of the models.
    """

    name: str
    out_of_domain: bool
    a: Evaluation
    b: Evaluation
    characters: tuple[float, float]
    gain: Gain | None = None
    p_value: float | None = None
    p_value_of_all: float | None = None
    better: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    wins: WinRate | None = None
    wins_at_equal_length: WinRate | None = None
    not_compared: str = ""
    left_out: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("gain", "wins", "wins_at_equal_length"):
            row[name] = None if row[name] is None else asdict(row[name])
        return {**row, "a": self.a.as_dict(), "b": self.b.as_dict()}


@dataclass(frozen=True, slots=True)
class CompareResult:
    """Comparison of two models on each of several problem sets.

    temperature: sampling temperature; None if no completion was sampled now. notes: one line for
    each setting that differs between the models.
    """

    a: str
    b: str
    sets: Sequence[ComparedSet]
    judge: str | None = None
    temperature: float | None = 0.0
    num_samples: int = 1
    notes: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**row, "notes": list(self.notes), "sets": [one.as_dict() for one in self.sets]}

    @property
    def found_nothing(self) -> bool:
        """Whether neither the verifier nor the preference judge produced a result."""
        return all(one.gain is None and one.wins is None for one in self.sets)

    def text(self, num_flips: int = SHOWN_FLIPS) -> str:
        """Format the comparison; each line shows at most ``num_flips`` ids of problems with
        different results.
        """
        heat = self.temperature
        how = "recorded" if heat is None else f"temperature {heat:g}" if heat else "greedy"
        many = "1 completion" if self.num_samples == 1 else f"{self.num_samples} completions"
        lines = [f"A: {self.a}", f"B: {self.b}", f"{how}, {many} a problem", *self.notes]
        for one in self.sets:
            lines += ["", *_lines(one, self.num_samples, num_flips)]
        if any(one.gain is not None for one in self.sets):
            test = "McNemar's" if self.num_samples == 1 else "sign flips of problems' differences"
            lines += ["", f"± is one standard error. p: exact test, {test}, paired by problem."]
        if len(self.sets) > 1:
            lines.append(f"p of all: p after Holm's correction for {len(self.sets)} compared sets.")
        return lined(lines)

    def __str__(self) -> str:
        return self.text()

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


def compared(
    name: str,
    out_of_domain: bool,
    sides: tuple[Evaluation, Evaluation],
    characters: tuple[float, float],
) -> ComparedSet:
    """Compare two evaluations of the same problems, problem by problem."""
    a, b = sides
    both = Paired.of(a.by_problem, b.by_problem)
    # The largest differences come first, because printed lists show only a few problems.
    size = dict(zip(both.ids, map(abs, both.differences), strict=True))
    return ComparedSet(
        name,
        out_of_domain,
        a,
        b,
        characters,
        gain=both.gain,
        p_value=both.p_value,
        better=tuple(sorted(both.better, key=size.__getitem__, reverse=True)),
        worse=tuple(sorted(both.worse, key=size.__getitem__, reverse=True)),
    )


def with_p_of_all(sets: Sequence[ComparedSet]) -> list[ComparedSet]:
    """Return the results with p values after Holm's correction for the number of problem sets."""
    # Sets without a p value cannot give a false alarm, so the correction does not count them.
    tested = [one for one in sets if one.p_value is not None]
    adjusted = iter(holm([one.p_value or 0.0 for one in tested]))
    return [
        one if one.p_value is None else replace(one, p_value_of_all=next(adjusted)) for one in sets
    ]


def _lines(one: ComparedSet, num_samples: int, num_flips: int) -> Iterator[str]:
    far = ", out of domain" if one.out_of_domain else ""
    count = one.gain.num_problems if one.gain else max(one.a.num_problems, one.b.num_problems)
    yield f"=== {one.name}{f', {count} problems' if count else ''}{far} ==="
    for side, found, length in zip("AB", (one.a, one.b), one.characters, strict=True):
        yield f"{side:9}{', '.join(_facts(found, length))}"
    if one.gain is not None:
        (low, high), holms = one.gain.interval, one.p_value_of_all
        error = f" ± {100 * one.gain.stderr:.1f}" if one.gain.stderr else ""
        of_all = f" (of all: {_p(holms)})" if holms not in (None, one.p_value) else ""
        yield (
            f"B minus A {100 * one.gain.value:+.1f} points{error}, 95% interval {100 * low:+.1f} to"
            f" {100 * high:+.1f}, p {_p(one.p_value)}{of_all}"
        )
        words = ("turned right", "turned wrong") if num_samples == 1 else ("better on", "worse on")
        for what, ids in zip(words, (one.better, one.worse), strict=True):
            shown = ", ".join([*ids[:num_flips], *(["..."] if len(ids) > num_flips > 0 else [])])
            yield f"{what}: {len(ids)}{f' ({shown})' if shown else ''}"
    yield from _win_lines(one)


def _facts(found: Evaluation, characters: float) -> Iterator[str]:
    if found.num_problems:
        yield f"{found.pass_at_1:.1%}{share_words(found.as_row())}"
    elif found.num_completions:
        yield "not verified"
    tokens = f" ({found.mean_tokens:.0f} tokens)" if found.mean_tokens > 0 else ""
    yield f"{characters:.0f} characters{tokens}"
    if found.truncated:
        yield f"{found.truncated:.0%} cut at the limit"
    if found.num_not_judged and found.num_problems:
        yield f"{found.num_not_judged} not judged"


def _win_lines(one: ComparedSet) -> Iterator[str]:
    if one.not_compared:
        yield f"judge: {one.not_compared}"
    wins, even = one.wins, one.wins_at_equal_length
    if wins is None:
        return
    yield (
        f"judge: B wins {wins.rate:.1%}{_error(wins)} (won {wins.wins}, lost {wins.losses}, ties"
        f" {wins.ties}{f', not judged {wins.not_judged}' if wins.not_judged else ''})"
    )
    if even is not None:
        yield f"at equal length: {even.rate:.1%}{_error(even)}"
    # Judges tend to prefer one position, so the win rate is also shown for each position.
    if wins.by_place is not None:
        first, second = wins.by_place
        yield (
            f"place: B wins {first:.1%} where it is shown first, {second:.1%} where second;"
            f" {wins.inconsistent} ties are judgements that changed with the order"
        )


def _error(wins: WinRate) -> str:
    return "" if wins.standard_error is None else f" ± {wins.standard_error:.1%}"


def _p(value: float | None) -> str:
    return "?" if value is None else f"< {_LEAST_P:g}" if value < _LEAST_P else f"{value:.2g}"
