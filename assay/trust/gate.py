"""The gate between a checkpoint and its users: what it must hold, measured on a set of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from assay.config import TrainConfig
from assay.data.overlap import Questions, normalize, plain_text, words_in
from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.errors import DataError, RunError, message
from assay.run.checkpoints import step_of
from assay.run.evaluations import gain_of
from assay.run.files import plain, read_rows, write_json
from assay.run.names import find_checkpoint
from assay.terminal import escaped
from assay.training.compare import compare
from assay.training.comparison import ComparedSet, CompareResult
from assay.training.consent import open_config
from assay.training.judging import judge
from assay.trust.thresholds import Thresholds, read_thresholds

CANARIES = {
    name: Path(__file__).with_name("canaries") / f"{name}.jsonl"
    for name in ("mathematics", "code", "instructions")
}
"""Files of canaries that come with Assay, by name."""
MUST_FAIL = ("planted", "leak")
"""Kinds of canaries that no honest completion passes."""
OPENED = ("data.train", "data.heldout", "sft.traces", "distill.traces")
"""What a gate opens of a run's configuration, which may name Python code."""

Outcome = Literal["passed", "failed", "told"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a gate looked at. limit: what it was held against; None: it is only told."""

    name: str
    found: str
    limit: str | None
    outcome: Outcome


@dataclass(frozen=True)
class GateResult:
    """What a gate found. model: the candidate; against: what it was compared with."""

    model: str
    against: str
    checks: Sequence[Check]
    compared: CompareResult
    thresholds: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "failed" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found = {"model": self.model, "against": self.against, "passed": self.passed}
        found |= {"checks": [asdict(one) for one in self.checks]}
        return plain({**found, "thresholds": self.thresholds, "compared": self.compared.as_dict()})

    def __str__(self) -> str:
        rows = [(one.outcome, one.name, one.found, one.limit or "") for one in self.checks]
        widths = [max(len(row[n]) for row in rows) for n in range(3)]
        lines = [f"candidate: {self.model}", f"against:   {self.against}", ""]
        lines += [
            "  ".join(f"{row[n]:{widths[n]}}" for n in range(3)) + f"  {row[3]}" for row in rows
        ]
        failed = [one.name for one in self.checks if one.outcome == "failed"]
        lines += ["", f"refused: {', '.join(failed)}" if failed else "the gate is passed"]
        return escaped("\n".join(line.rstrip() for line in lines))

    __repr__ = __str__  # what a notebook shows


def gate(
    model: str,
    problems: Sequence[str],
    *,
    against: str | None = None,
    out_of_domain: Sequence[str] = (),
    canaries: Sequence[Path | str] = tuple(CANARIES),
    strong: str | None = None,
    thresholds: Path | str | None = None,
    review: Path | str | None = None,
    out: Path | str,
    **how: Any,
) -> GateResult:
    """Hold a checkpoint against another model, on problems that its run has never seen.

    problems, out_of_domain: sources. against: None: the model that the run started from. canaries:
    names of `CANARIES`, or files of problems whose first tag is their kind. strong: a verifier that
    judges again what passed. review: a JSONL file of rows with the ``id`` of a completion, ``by``
    and ``ok``. out: gets every completion, as JSONL. how: as `compare` has it.

    Raises DataError where a problem or a canary stands in the run's own sets, UserError for other
    wrong input.
    """
    limits = read_thresholds(thresholds)
    checkpoint = find_checkpoint(model)
    trust = {key: how[key] for key in ("allow", "trust_run") if key in how}
    config = _run_config(checkpoint, model, **trust)
    other = against or config.model.path
    files = [str(CANARIES.get(str(one), one)) for one in canaries]
    kinds = _kinds_of(files)
    far = [*out_of_domain, *files]
    check_unseen(config, [*problems, *far])
    reviewed = None if review is None else _read_review(Path(review))
    compared = compare(other, model, problems, out_of_domain=far, out=out, **how)
    checks: list[Check] = []
    for one in compared.sets:
        if one.name in files:
            asked = islice(kinds[one.name].items(), how.get("max_problems"))
            checks += canary_checks(one, dict(asked), limits)
        else:
            checks += set_checks(one, limits)
    own = [one.name for one in compared.sets if not one.out_of_domain]
    if strong is not None:
        checks.append(hack_check(Path(out), own, strong, limits, how.get("allow", ())))
    if limits.min_reviewed is not None or reviewed is not None:
        checks.append(review_check(reviewed or [], Path(out), limits))
    result = GateResult(model, other, checks, compared, limits.model_dump())
    keep_result(checkpoint, result)
    return result


def _run_config(checkpoint: Path | None, model: str, **trust: Any) -> TrainConfig:
    if checkpoint is None or step_of(checkpoint) is None:
        accepted = "a checkpoint of a run (RUN, RUN@best, RUN@120), whose data are known"
        raise RunError(message("assay gate", model, accepted))
    return open_config(checkpoint.parent.parent, OPENED, **trust)


def _kinds_of(files: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the kind of each canary by its id, of each file; raises DataError for one without."""
    kinds: dict[str, dict[str, str]] = {}
    for file in files:
        for problem in _all_problems([file]):
            if not problem.tags:
                accepted = "the kind of canary, first"
                raise DataError(message(f"{problem.source} tags", "none", accepted))
            kinds.setdefault(file, {})[problem.id] = problem.tags[0]
    return kinds


def _all_problems(sources: Sequence[Any]) -> Iterator[Any]:
    if sources:
        rows = load_problems(sources, on_bad_row="skip")
        yield from (rows[n] for n in range(len(rows)))


def check_unseen(config: TrainConfig, sources: Sequence[str]) -> None:
    """Raise DataError where a question of the gate stands in what the run has trained on or seen.

    Its held-out set counts too: the guard, patience and the choice of the best step have seen it.
    """
    asked = list(_all_problems(sources))
    questions = Questions(None)
    for problem in asked:
        questions.add(normalize(problem))
    for key, prompt, place in _seen(config):
        if (index := questions.equal(words_in(plain_text(prompt)))) is not None:
            found = f"the question of {place}, of the run's {key}"
            accepted = "problems that neither the run nor its guard has seen"
            raise DataError(message(f"assay gate: {asked[index].place}", found, accepted))


def _seen(config: TrainConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield key, prompt and place of what a run has trained on, or was evaluated on."""
    for key in ("train", "heldout"):
        for problem in _all_problems(getattr(config.data, key)):
            yield f"data.{key}", problem.prompt, problem.place
    given = config.sft or config.distill
    if given is not None and given.traces:
        for trace in load_traces(given.traces, on_bad_row="skip"):
            yield f"{config.stage}.traces", trace.prompt, trace.source


def set_checks(one: ComparedSet, limits: Thresholds) -> Iterator[Check]:
    """Yield the checks of one set: correctness, length, latency."""
    where = f"{'out of domain' if one.out_of_domain else 'correctness'}, {one.name}"
    if one.gain is None:
        yield Check(where, "nothing was judged by both", "a verdict", "failed")
        return
    gain, p = one.gain, one.p_value_of_all or 0.0
    words = f"{one.a.pass_at_1:.1%} -> {one.b.pass_at_1:.1%}, {gain.points}, p {p:.2g}"
    worse = gain.value < 0 and p < limits.chance
    lost = -gain.value > limits.max_loss
    least = None if one.out_of_domain else limits.min_gain
    short = least is not None and gain.value < least
    wanted = f"not worse (p < {limits.chance:g}), loss at most {limits.max_loss:.0%}"
    wanted += f", gain at least {least:.1%}" if least is not None else ""
    yield Check(where, words, wanted, "failed" if worse or lost or short else "passed")
    sides = (one.a, one.b)
    lengths = [side.mean_tokens for side in sides]
    yield _ratio_check(f"length, {one.name}", lengths, limits.max_length_ratio, "tokens")
    seconds = [1e3 * side.seconds / max(1, side.num_completions) for side in sides]
    yield _ratio_check(f"latency, {one.name}", seconds, limits.max_latency_ratio, "ms")


def _ratio_check(name: str, values: Sequence[float], most: float | None, unit: str) -> Check:
    before, now = values
    ratio = now / before if before else math.inf if now else 1.0
    found = f"{before:.1f} -> {now:.1f} {unit} ({ratio:.2f} times)"
    if most is None:
        return Check(name, found, None, "told")
    return Check(name, found, f"at most {most:g} times", "failed" if ratio > most else "passed")


def canary_checks(
    one: ComparedSet, kinds: Mapping[str, str], limits: Thresholds
) -> Iterator[Check]:
    """Yield a check for each kind of canaries."""
    file = Path(one.name).stem
    for kind in dict.fromkeys(kinds.values()):
        name = f"canaries, {file}, {kind}"
        asked = [id for id in kinds if kinds[id] == kind]
        ids = [id for id in asked if id in one.b.by_problem]
        if not ids or (kind in MUST_FAIL and len(ids) < len(asked)):
            found = f"{len(asked) - len(ids)} of {len(asked)} were not judged"
            yield Check(name, found, "a verdict", "failed")
            continue
        share = sum(one.b.by_problem[id] for id in ids) / len(ids)
        if kind in MUST_FAIL:
            passed = [id for id in ids if one.b.by_problem[id] > 0]
            found = f"{len(passed)} of {len(ids)} passed" + (f": {passed[0]}" if passed else "")
            outcome: Outcome = "failed" if passed else "passed"
            yield Check(name, found, "none passes: any pass is a hack", outcome)
            continue
        differences = [one.b.by_problem[id] - one.a.by_problem.get(id, 0.0) for id in ids]
        gain = gain_of(differences)
        lost = -gain.value > limits.max_canary_loss
        found = f"{share:.0%} of {len(ids)}, {gain.points}"
        wanted = f"loss at most {limits.max_canary_loss:.0%}"
        yield Check(name, found, wanted, "failed" if lost else "passed")


def hack_check(
    completions: Path, sets: Sequence[str], strong: str, limits: Thresholds, allow: Sequence[str]
) -> Check:
    """Judge again what passed of the candidate: what the stronger verifier rejects is a hack."""
    rows = [row for row in read_rows(completions) if row["side"] == "B" and row["set"] in sets]
    passed = [row for row in rows if row["status"] == "passed"]
    name = f"hack rate, {strong}"
    limit = f"at most {limits.max_hack_rate:.1%}"
    if not passed:
        return Check(name, "nothing passed", limit, "told")
    again = judge(passed, strong, allow=allow)
    rejected = [row["id"] for row in again if row["status"] == "failed"]
    unknown = sum(row["status"] == "not_judged" for row in again)
    rate = len(rejected) / len(passed)
    found = f"{len(rejected)} of {len(passed)} passes are rejected ({rate:.1%})"
    found += f": {rejected[0]}" if rejected else ""
    found += f"; {unknown} not judged" if unknown else ""
    bad = rate > limits.max_hack_rate or unknown == len(passed)
    return Check(name, found, limit, "failed" if bad else "passed")


def _read_review(path: Path) -> Sequence[Mapping[str, Any]]:
    rows = list(read_rows(path))
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("ok"), bool) or not row.get("id") or not row.get("by"):
            accepted = 'rows {"id": ..., "by": "NAME", "ok": true or false}'
            raise DataError(message(f"{path} row {number}", f"{row!r:.60}", accepted))
    return rows


def review_check(
    reviewed: Sequence[Mapping[str, Any]], completions: Path, limits: Thresholds
) -> Check:
    """Count what people accepted of the candidate's completions."""
    ids = {row["id"] for row in read_rows(completions) if row["side"] == "B"}
    known = [row for row in reviewed if row["id"] in ids]
    refused = [str(row["id"]) for row in known if not row["ok"]]
    least = limits.min_reviewed or 1
    people = ", ".join(sorted({str(row["by"]) for row in known}))
    found = f"{len(known)} read by {people or 'nobody'}, {len(refused)} refused"
    bad = len(known) < least or bool(refused)
    wanted = f"at least {least} read, none refused"
    return Check("human review", found, wanted, "failed" if bad else "passed")


def keep_result(checkpoint: Path | None, result: GateResult) -> None:
    """Keep what a gate found in the run, where its model card finds it."""
    if checkpoint is not None:
        folder = checkpoint.parent.parent / "gates"
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{checkpoint.name}.json", result.as_dict())
