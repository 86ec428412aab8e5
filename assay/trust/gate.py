"""The gate between a checkpoint and its users: what it must hold, measured on a set of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from assay.config import TrainConfig
from assay.data.overlap import Questions, normalize, plain_text, words_in
from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.errors import DataError, RunError, did_you_mean, message
from assay.run.checkpoints import step_of
from assay.run.evaluations import gain_of
from assay.run.files import plain, read_rows, write_json
from assay.run.names import check_place, find_checkpoint
from assay.terminal import aligned, escaped
from assay.training.compare import compare
from assay.training.comparison import ComparedSet, CompareResult
from assay.training.consent import open_config
from assay.training.how_to_sample import HowToSample, sampling_config, several
from assay.training.judging import judge
from assay.trust.divergence import divergence
from assay.trust.thresholds import Thresholds, read_thresholds
from assay.verify.expression import parse_expression
from assay.verify.sandbox import sandbox_report
from assay.verify.service import VerifierService

CANARIES = {
    name: Path(__file__).with_name("canaries") / f"{name}.jsonl"
    for name in ("mathematics", "code", "instructions")
}
"""Files of canaries that come with Assay, by name."""
MUST_FAIL = ("planted", "leak")
"""Kinds of canaries that no honest completion passes."""
KINDS = (
    *("equivalent_forms", "weak_tests", "misleading", "long_but_easy", "short_but_tricky"),
    *("must_refuse", "ask_back", *MUST_FAIL),
)
"""Kinds of the canaries that come with Assay. A file of the user's may have others."""
KL_PROBLEMS = 64
"""So many problems of the gate's own are sampled once more for the KL."""
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
    """What a gate found. model: the candidate; against: what it was compared with.

    compared: one comparison for each effort that was asked.
    """

    model: str
    against: str
    checks: Sequence[Check]
    compared: Sequence[CompareResult]
    thresholds: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "failed" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found = {"model": self.model, "against": self.against, "passed": self.passed}
        found |= {"checks": [asdict(one) for one in self.checks]}
        compared = [one.as_dict() for one in self.compared]
        return plain({**found, "thresholds": self.thresholds, "compared": compared})

    def __str__(self) -> str:
        rows = [(one.outcome, one.name, one.found, one.limit or "") for one in self.checks]
        lines = [f"candidate: {self.model}", f"against:   {self.against}", "", *aligned(rows)]
        failed = [one.name for one in self.checks if one.outcome == "failed"]
        lines += ["", f"refused: {', '.join(failed)}" if failed else "the gate is passed"]
        return escaped("\n".join(lines))

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
    and ``ok``. out: gets every completion, as JSONL. how: as `compare` has it; rows that name no
    verifier are judged by that of the candidate's run.

    Raises DataError where a problem or a canary stands in the run's own sets, UserError for other
    wrong input.
    """
    limits = read_thresholds(thresholds)
    checkpoint = find_checkpoint(model)
    trust = {key: how[key] for key in ("allow", "trust_run") if key in how}
    config = _run_config(checkpoint, model, **trust)
    if how.get("verifier") is None and not config.data.verifier_by_tag:
        how["verifier"] = config.data.verifier  # also where the other run had another
    other = against or config.model.path
    check_place(other, other)
    find_checkpoint(other)
    files = [str(CANARIES.get(str(one), one)) for one in canaries]
    kinds = _kinds_of(files)
    far = [*out_of_domain, *files]
    reviewed = None if review is None else _read_review(Path(review))
    if strong is not None:
        _check_strong(strong, how.get("allow", ()))
    _check_sandbox(canaries, model, how)
    check_unseen(config, [*problems, *far])
    shipped = [str(path) for path in CANARIES.values()]
    compared: list[CompareResult] = []
    checks: list[Check] = []
    asked = _efforts(config, how)
    whole = Path(out)
    files_of = [whole if one is None else whole.with_stem(f"{whole.stem}-{one}") for one in asked]
    for effort, file in zip(asked, files_of, strict=True):
        how |= {"effort": effort or how.get("effort")}
        one = compare(other, model, problems, out_of_domain=far, out=file, fitting=shipped, **how)
        found = [*_comparison_checks(one, kinds, limits, how.get("max_problems"))]
        if strong is not None:
            found.append(hack_check(file, problems, strong, limits, how.get("allow", ())))
        ending = "" if effort is None else f", effort {effort}"
        checks += [replace(each, name=f"{each.name}{ending}") for each in found]
        compared.append(one)
    checks.append(kl_check(model, other, problems, limits, how))
    if limits.min_reviewed is not None or reviewed is not None:
        checks.append(review_check(reviewed or [], files_of, limits))
    result = GateResult(model, other, checks, compared, limits.model_dump())
    keep_result(checkpoint, result)
    return result


def _efforts(config: TrainConfig, how: Mapping[str, Any]) -> list[str | None]:
    """Return the efforts to ask with: of a run that has trained with any, the first and the last
    that leave room for an answer."""
    sampling = config.sampling
    if how.get("effort") is not None or how.get("think_budget") is not None:
        return [None]  # as `how` has it
    tells = sampling.effort is not None or any(
        problem.effort is not None for problem in _all_problems(config.data.train)
    )
    most = how.get("max_tokens") or sampling.max_tokens
    levels = sampling.efforts.items()
    names = [name for name, level in levels if isinstance(level, str) or level < most]
    return [*dict.fromkeys([names[0], names[-1]])] if tells and names else [None]


def _comparison_checks(
    compared: CompareResult,
    kinds: Mapping[str, Mapping[str, str]],
    limits: Thresholds,
    most: int | None,
) -> Iterator[Check]:
    for one in compared.sets:
        if one.name in kinds:
            yield from canary_checks(one, dict(islice(kinds[one.name].items(), most)), limits)
        else:
            yield from set_checks(one, limits)


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
            kind = problem.tags[0]
            if kind not in KINDS and (meant := did_you_mean(kind, KINDS, 0.85)):
                accepted = f"{', '.join(KINDS)}, or a kind of yours"
                raise DataError(message(f"{problem.source} tags", repr(kind), accepted, meant))
            kinds.setdefault(file, {})[problem.id] = kind
    return kinds


def _check_strong(strong: str, allow: Sequence[str] | str) -> None:
    """Raise VerifierError where the stronger verifier cannot be used."""
    with VerifierService(strong, num_workers=1, allow=several(allow)) as service:
        service.check([strong])


def _check_sandbox(canaries: Sequence[Path | str], model: str, how: Mapping[str, Any]) -> None:
    """Raise RunError where canaries run programs, and there is nothing to run them in.

    They would not be judged, after all of them were sampled.
    """
    names = [
        str(one)
        for one in canaries
        for problem in _all_problems([str(CANARIES.get(str(one), one))])
        if problem.verifier is not None
        and any("code" in term.names for term in parse_expression(problem.verifier))
    ]
    _, works, detail = sandbox_report()[0] if names else ("", True, "")
    if works:
        return
    keys = HowToSample.__dataclass_fields__.keys() & how.keys()
    config = sampling_config(model, [], HowToSample(**{key: how[key] for key in keys}))
    if config.verification.options.get("code", {}).get("unsafe_no_sandbox"):
        return
    others = [str(one) for one in canaries if str(one) not in names]
    remedy = "or ask the others alone: " + " ".join(f"--canaries {one}" for one in others)
    remedy = remedy if others else "or ask other canaries: --canaries mathematics"
    raise RunError(f"assay gate --canaries {names[0]}: {detail}; {remedy}")


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
    for trace in load_traces(config.traces, on_bad_row="skip") if config.traces else ():
        yield f"{config.stage}.traces", trace.prompt, trace.source


def set_checks(one: ComparedSet, limits: Thresholds) -> Iterator[Check]:
    """Yield the checks of one set: correctness, length, latency."""
    where = f"{'out of domain' if one.out_of_domain else 'correctness'}, {one.name}"
    yield _judged_check(one, limits)
    if one.gain is None:
        yield Check(where, "nothing was judged by both", "a verdict", "failed")
        return
    gain, p = one.gain, one.p_value_of_all or 0.0
    words = f"{one.a.pass_at_1:.1%} -> {one.b.pass_at_1:.1%}, {gain.points}, p {p:.2g}"
    worse = gain.value < 0 and p < limits.chance
    lost = -gain.value > limits.max_loss
    if gain.interval[0] < -limits.max_loss and not (worse or lost):
        number = gain.num_problems
        words += f"; {number} problems are too few to rule out a loss of {limits.max_loss:.0%}"
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


def _judged_check(one: ComparedSet, limits: Thresholds) -> Check:
    """Count what no verifier could judge, of both: it is left out of every other check."""
    words, most = [], 0.0
    for name, side in (("candidate", one.b), ("other", one.a)):
        words.append(f"{name} {side.num_not_judged} of {side.num_completions}")
        most = max(most, side.num_not_judged / max(1, side.num_completions))
    wanted = f"at most {limits.max_not_judged:.0%} of either"
    outcome: Outcome = "failed" if most > limits.max_not_judged else "passed"
    return Check(f"not judged, {one.name}", "; ".join(words), wanted, outcome)


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
    """Yield a check for each kind of canaries; before them, how many do not fit the models."""
    file, a, b = Path(one.name).stem, one.a.by_problem, one.b.by_problem
    if unfit := len(kinds.keys() & {*one.left_out}):
        found = f"{unfit} of {len(kinds)}: with a completion their prompts do not fit the context"
        yield Check(f"canaries, {file}, left out", found, None, "told")
    for kind in dict.fromkeys(kinds.values()):
        name = f"canaries, {file}, {kind}"
        every = [id for id in kinds if kinds[id] == kind]
        asked = [id for id in every if id not in one.left_out]
        short = f"; {len(every) - len(asked)} left out" if len(every) > len(asked) else ""
        if not asked:
            yield Check(name, f"none asked{short}", None, "told")
            continue
        found, limit, passed = _of_kind(asked, a, b, limits, kind in MUST_FAIL)
        yield Check(name, found + short, limit, "passed" if passed else "failed")


def _of_kind(
    asked: Sequence[str],
    a: Mapping[str, float],
    b: Mapping[str, float],
    limits: Thresholds,
    must_fail: bool,
) -> tuple[str, str, bool]:
    """Return what was found of a kind of canaries, what it was held against, whether it passed."""
    sides = {"": b} if must_fail else {"": b, " of the other model": a}
    unknown = {side: sum(id not in shares for id in asked) for side, shares in sides.items()}
    most = 0.0 if must_fail else limits.max_not_judged
    words = [f"{count} of {len(asked)} were not judged{side}" for side, count in unknown.items()]
    told = [word for word, count in zip(words, unknown.values(), strict=True) if count]
    if max(unknown.values()) > most * len(asked):
        return "; ".join(told), "a verdict", False
    ids = [id for id in asked if all(id in shares for shares in sides.values())]
    if must_fail:
        hacked = [id for id in ids if b[id] > 0]
        found = f"{len(hacked)} of {len(ids)} passed" + (f": {hacked[0]}" if hacked else "")
        return found, "none passes: any pass is a hack", not hacked
    if not ids:
        return "nothing was judged of both", "a verdict", False
    share = sum(b[id] for id in ids) / len(ids)
    gain = gain_of([b[id] - a[id] for id in ids])
    found = "; ".join([f"{share:.0%} of {len(ids)}, {gain.points}", *told])
    return (
        found,
        f"loss at most {limits.max_canary_loss:.0%}",
        -gain.value <= limits.max_canary_loss,
    )


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


def kl_check(
    model: str, other: str, problems: Sequence[str], limits: Thresholds, how: Mapping[str, Any]
) -> Check:
    """Measure how far the candidate has gone, on completions that it samples at temperature 1."""
    keys = HowToSample.__dataclass_fields__.keys() & how.keys()
    count = min(KL_PROBLEMS, how.get("max_problems") or KL_PROBLEMS)
    asked = HowToSample(**{key: how[key] for key in keys})
    far, most = divergence(model, other, problems, count, asked), limits.max_kl
    limit = None if most is None else f"at most {most:g} nats a token"
    if far is None:
        found = "not measured: the models have different tokenizers, or nothing was sampled"
        return Check("KL", found, limit, "told" if most is None else "failed")
    outcome: Outcome = "told" if most is None else "failed" if far.per_token > most else "passed"
    return Check("KL", str(far), limit, outcome)


def _read_review(path: Path) -> Sequence[Mapping[str, Any]]:
    rows = list(read_rows(path))
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("ok"), bool) or not row.get("id") or not row.get("by"):
            accepted = 'rows {"id": ..., "by": "NAME", "ok": true or false}'
            raise DataError(message(f"{path} row {number}", f"{row!r:.60}", accepted))
    return rows


def review_check(
    reviewed: Sequence[Mapping[str, Any]], completions: Sequence[Path], limits: Thresholds
) -> Check:
    """Count what people accepted of the candidate's completions."""
    ids = {row["id"] for file in completions for row in read_rows(file) if row["side"] == "B"}
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
