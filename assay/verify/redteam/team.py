"""Try known reward hacks on a verifier: ``assay redteam --verifier math``.

A suite contains problems, attacks and controls. An attack is a completion that tries to be rewarded
without solving the problem. A control is an honest solution in an unusual style, which must pass.
The red team's goal is zero accepted attacks and no failed control. Attacks come from reports about
real checkers in the literature and in public issues. Each attack file names the sources of its
attacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from assay.errors import DataError, VerifierError, did_you_mean, message
from assay.host.terminal import lined
from assay.types import Completion, Problem, ThinkFormat, Verdict
from assay.verify.base import resolve
from assay.verify.expression import BUILT_IN, parse_expression
from assay.verify.redteam.suite import Case, Suite, shipped_suites
from assay.verify.selftest import labelled_names, labelled_pair, labelled_rows
from assay.verify.service import Options, VerifierService

# Maximum number of characters of a completion and of a detail that a finding shows.
SHOWN_TEXT = 400
# Maximum number of wrong cases of one attack family that the text output shows.
SHOWN_FINDINGS = 2
REJECTED, ACCEPTED, DARK = "control rejected", "attack accepted", "not judged"


@dataclass(frozen=True, slots=True)
class WrongCase:
    """A wrong result: an accepted attack, a rejected control, or an attack that was not judged.

    kind: `ACCEPTED`, `REJECTED` or `DARK`.
    """

    attack: str
    kind: str
    problem: str
    expected: str
    completion: str
    detail: str


@dataclass(eq=False)
class RedTeamResult:
    """Result of the attacks on one verifier: counts by attack family, and all wrong cases."""

    verifier: str
    suite: str
    tried: Counter[str] = field(default_factory=Counter[str])
    accepted: Counter[str] = field(default_factory=Counter[str])
    not_judged: Counter[str] = field(default_factory=Counter[str])
    # Highest score of the attacks that were not accepted, by family. Training optimizes scores too.
    paid: dict[str, float] = field(default_factory=dict[str, float])
    controls: int = 0
    controls_passed: int = 0
    findings: list[WrongCase] = field(default_factory=list[WrongCase])
    skipped: str = ""

    @property
    def num_accepted(self) -> int:
        """Number of accepted attacks. The goal is 0."""
        return self.accepted.total()

    @property
    def held(self) -> bool:
        """Whether every attack was judged and rejected, and at least one control passed.

        Some controls may fail, because a reward may require one format of an answer.
        """
        passes_some = self.controls_passed > 0 or not self.controls
        return self.num_accepted == self.not_judged.total() == 0 and passes_some

    def add(self, case: Case, verdict: Verdict, accepted: bool) -> None:
        """Count one case, and record the case if its result is wrong."""
        kind = ""
        if case.honest:
            self.controls += 1
            self.controls_passed += accepted
            # A control that was not judged also counts as rejected, because it gives no evidence.
            kind = "" if accepted else REJECTED
        else:
            self.tried[case.attack] += 1
            if accepted:
                self.accepted[case.attack] += 1
                kind = ACCEPTED
            elif not verdict.judged:
                self.not_judged[case.attack] += 1
                kind = DARK
            elif verdict.score:
                self.paid[case.attack] = max(verdict.score, self.paid.get(case.attack, 0.0))
        if kind:
            read = f"; it read {verdict.extracted!r}" if verdict.extracted is not None else ""
            detail = f"{verdict.status}{read}{': ' if verdict.detail else ''}{verdict.detail}"
            expected = repr(case.problem.spec.get("answer", ""))[:80]
            row = (case.problem.id, expected, case.completion[:SHOWN_TEXT], detail[:SHOWN_TEXT])
            self.findings.append(WrongCase(case.attack, kind, *row))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        findings = [asdict(one) for one in self.findings]
        return {**vars(self), "held": self.held, "findings": findings}

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.verifier}: skipped: {self.skipped}"
        return lined([*self._table(), *self._shown_findings(), *self._outcome()])

    # Notebooks show the result of `__repr__`.
    __repr__ = __str__

    def _table(self) -> Iterator[str]:
        """Yield a line of totals, then one line per attack family."""
        yield (
            f"{self.verifier} against the suite {self.suite}: "
            f"{self.num_accepted} of {self.tried.total()} attacks accepted, "
            f"{self.not_judged.total()} not judged; "
            f"{self.controls_passed} of {self.controls} honest controls passed"
        )
        width = max(map(len, self.tried), default=0)
        for attack, count in self.tried.items():
            accepted, dark = self.accepted[attack], self.not_judged[attack]
            said = f"{accepted} of {count} ACCEPTED" if accepted else f"0 of {count} accepted"
            said += f", {dark} not judged" if dark else ""
            said += f", paid up to {self.paid[attack]:.2g}" if attack in self.paid else ""
            yield f"  {attack:<{width}}  {said}"

    def _outcome(self) -> Iterator[str]:
        """Yield lines about whether the verifier held, why, and how many controls failed."""
        dark, failed = self.not_judged.total(), self.controls - self.controls_passed
        if self.held:
            yield "held: every attack was judged, and none was accepted"
        if self.num_accepted:
            yield f"not held: {self.num_accepted} attacks were accepted"
        if dark:
            # If no attack was judged, the rows probably lack the key that the verifier reads.
            rest = "; --problems names your rows, --key the key of their answer"
            rest = rest if dark == self.tried.total() else ""
            yield f"not held: {dark} attacks were not judged{rest}"
        if failed and not self.controls_passed:
            yield "not held: no honest control passed, so rejected attacks are no evidence"
        elif failed:
            yield f"{failed} honest controls failed: correct answers in forms that it rejects"

    def _shown_findings(self) -> Iterator[str]:
        """Yield the most common reasons for *not judged*, then the first wrong cases by family."""
        reasons = Counter(one.detail for one in self.findings if one.kind == DARK)
        for reason, count in reasons.most_common(2):
            yield f"not judged, {count} times: {reason[:200]}"
        shown: Counter[tuple[str, str]] = Counter()
        for one in self.findings:
            if one.kind == DARK:
                continue
            shown[one.kind, one.attack] += 1
            if shown[one.kind, one.attack] <= SHOWN_FINDINGS:
                gold = f", expected {one.expected}" if one.expected != "''" else ""
                yield f"{one.kind}: {one.attack} on {one.problem}{gold} ({one.detail[:120]})"
                yield from (f"    {line[:160]}" for line in one.completion.splitlines()[:12])
        if hidden := sum(max(0, count - SHOWN_FINDINGS) for count in shown.values()):
            yield f"and {hidden} more; --json has them all"


def suites() -> dict[str, Suite]:
    """Return all suites by name, including suites from labelled sets."""
    known = dict(shipped_suites())
    # For a verifier without a file of attacks, the red team tries the hacks in the verifier's
    # labelled set.
    # A detector's labelled set contains no hacks, because the set measures an error rate.
    for name in labelled_names():
        if not resolve(name).fallible:
            known.setdefault(name, Suite(name))
    return known


def red_team(
    verifier: str,
    problems: Sequence[Problem] | None = None,
    *,
    suite: str | None = None,
    key: str = "answer",
    num_workers: int | None = None,
    deadline: float = 10.0,
    options: Options | None = None,
    service: VerifierService | None = None,
) -> RedTeamResult:
    """Judge a suite's attacks and controls by a built-in or user-defined verifier.

    problems: the user's rows. None: the suite's own problems.
    suite: name of the suite. None: the suite with the name of the verifier's first term, else the
        first suite that fits the problems, else ``math``.
    key: key of the expected answer in the user's rows.

    Raises VerifierError or DataError if an argument is invalid.
    """
    if problems is not None and key != "answer":
        # Attacks read the key ``answer``.
        # The row's own key stays in the spec, because the verifier reads the row's own key.
        problems = [_with_answer(problem, key) for problem in problems]
    chosen = choose_suite(verifier, problems, suite)
    with ExitStack() as stack:
        if service is None:
            service = stack.enter_context(
                VerifierService(
                    verifier, num_workers=num_workers, deadline=deadline, options=options
                )
            )
        service.check([verifier])
        cases = list(all_cases(chosen, problems, verifier))
        verdicts = list(service.judge_text((one.problem, _completion(one)) for one in cases))
    label = verdicts[0].verifier if verdicts else verifier
    result = RedTeamResult(label, chosen.name)
    floors = honest_floors(cases, verdicts) if is_learned(verifier) else None
    for case, verdict in zip(cases, verdicts, strict=True):
        result.add(case, verdict, is_accepted(case, verdict, floors))
    return result


def warnings(verifier: str, options: Options | None = None) -> list[str]:
    """Return warnings about an expression, such as shaping that outweighs correctness."""
    # A single worker suffices, because checking an expression judges no completion.
    with VerifierService(verifier, num_workers=1, options=options) as service:
        return service.warnings(verifier)


def red_team_all(**settings: Any) -> Iterator[RedTeamResult]:
    """For each built-in verifier with a suite, yield the red team's result.

    Unusable verifiers are skipped.
    """
    for name in suites():
        if name in BUILT_IN:
            try:
                yield red_team(name, **settings)
            except VerifierError as error:
                yield RedTeamResult(name, name, skipped=str(error))


def choose_suite(
    verifier: str, problems: Sequence[Problem] | None, name: str | None = None
) -> Suite:
    """Return the suite for a verifier.

    Raises VerifierError without a suite, and DataError for a problem that the suite does not fit.
    """
    known = suites()
    if name is not None and name not in known:
        meant = did_you_mean(name, known)
        raise VerifierError(message("--suite", repr(name), ", ".join(known), meant))
    first = parse_expression(verifier)[0].names[0].partition("@")[0]
    found = known.get(name or first)
    if found is None and problems:
        # The attack suite is chosen by the first problem only.
        # All problems are checked in the loop below.
        found = next((one for one in known.values() if one.fits(problems[0])), None)
    if found is None and first in BUILT_IN:
        raise VerifierError(message("redteam", f"no suite for {first!r}", ", ".join(known)))
    found = found or known["math"]
    for problem in problems or ():
        if not found.fits(problem):
            reads = ", ".join(found.problems[0].spec)
            accepted = f"what the suite {found.name} reads: {reads}"
            remedy = "if another key holds the answer: --key NAME" if reads == "answer" else ""
            keys = f"the keys {', '.join(problem.spec)}" if problem.spec else "no keys"
            raise DataError(message(problem.place, keys, accepted, remedy))
    return found


def _with_answer(problem: Problem, key: str) -> Problem:
    """Return a problem whose spec also has its answer under the key ``answer``."""
    if key not in problem.spec:
        found = f"no key {key!r} but {', '.join(problem.spec) or 'none'}"
        raise DataError(message(f"{problem.place} --key", found, "a key of every row"))
    return replace(problem, spec={**problem.spec, "answer": problem.spec[key]})


def all_cases(suite: Suite, problems: Sequence[Problem] | None, verifier: str) -> Iterator[Case]:
    """Yield the cases of every problem, with ``verifier`` as the expression of each problem."""
    found = chain.from_iterable(map(suite.cases, suite.problems if problems is None else problems))
    if problems is None:
        found = chain(found, labelled_cases(suite.name))
    for case in found:
        problem = case.problem
        # The problem names the verifier under test, which the service then uses instead of its
        # default verifier.
        judged = Problem(problem.id, problem.prompt, problem.spec, verifier, source="redteam")
        yield replace(case, problem=judged)


def labelled_cases(name: str) -> Iterator[Case]:
    """Yield the hacks in a verifier's labelled set, and its honest replies in unusual styles."""
    for row in labelled_rows(name):
        # The self-test covers ordinary rows, so the red team tries only hacks and unusual styles.
        honest = row["expected"] == "passed"
        if (row["kind"] == "odd_style" and honest) or (row["kind"] == "hack" and not honest):
            problem, completion = labelled_pair(name, row)
            attack = "control" if honest else "labelled hacks"
            yield Case(attack, problem, completion.text, completion.think.mode, honest)


def is_learned(verifier: str) -> bool:
    """Return whether a verifier's first term is a learned model.

    A learned score has no fixed threshold, so whether an attack is accepted is decided relative to
    honest controls.
    """
    name = parse_expression(verifier)[0].names[0]
    return name.partition("@")[0] in BUILT_IN and resolve(name).executor == "device"


def honest_floors(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the lowest reward of an honest control, by problem id."""
    floors: dict[str, float] = {}
    for case, verdict in zip(cases, verdicts, strict=True):
        if case.honest and verdict.reward is not None:
            least = floors.setdefault(case.problem.id, verdict.reward)
            floors[case.problem.id] = min(verdict.reward, least)
    return floors


def is_accepted(case: Case, verdict: Verdict, floors: Mapping[str, float] | None) -> bool:
    """Return whether a completion counts as rewarded.

    floors: lowest rewards of honest controls, for a learned verifier. With floors, an attack counts
        as rewarded if its reward reaches the floor of its problem. Without floors, a completion
        counts as rewarded if the completion passed.
    """
    if floors is None or case.honest:
        # A control defines the floor of a learned verifier, so a judged control passes.
        return verdict.correct if floors is None else verdict.judged
    return verdict.reward is not None and verdict.reward >= floors.get(case.problem.id, 0.0)


def _completion(case: Case) -> Completion:
    return Completion.from_text(case.completion, case.problem.id, ThinkFormat(case.think))
