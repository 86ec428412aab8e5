"""The gate: checks that a checkpoint must pass before release, on problems outside its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from assay.config import TrainConfig
from assay.data.overlap import Questions, normalize, plain_text, words_in
from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.endpoint.costs import judge_costs
from assay.errors import DataError, RunError, did_you_mean, message
from assay.evaluation.compare import compare
from assay.evaluation.compare_result import CompareResult
from assay.evaluation.divergence import divergence
from assay.evaluation.gate_checks import (
    CANARIES,
    KINDS,
    Check,
    Outcome,
    comparison_checks,
    cost_check,
)
from assay.evaluation.gate_thresholds import Thresholds, read_thresholds
from assay.evaluation.policy_redteam import SUITE, attack_checks, check_policy
from assay.host.files import plain, read_rows, write_json
from assay.host.startup import doing
from assay.host.terminal import aligned, lined, say
from assay.run.checkpoints import step_of
from assay.run.names import check_place, find_checkpoint
from assay.run.startup import show_startup
from assay.session.consent import open_config
from assay.session.judging import judge
from assay.session.sampling import (
    SamplingOptions,
    sampling_config,
    several,
    takes_sampling_options,
)
from assay.verify.expression import parse_expression
from assay.verify.sandbox import sandbox_report
from assay.verify.service import VerifierService

KL_PROBLEMS = 64
"""Number of problems that are sampled again to measure the KL."""
OPENED = (
    *("data.train", "data.heldout", "data.canaries"),
    *("sft.traces", "sft.heldout", "distill.traces"),
)
"""Keys of a run's configuration that the gate opens; they may name Python code, which needs
consent."""


@dataclass(frozen=True)
class GateResult:
    """Result of a gate.

    model: name of the candidate. against: name of the model with which the gate compared the
    candidate. compared: comparison of candidate and other model, for each thinking effort. adapter:
    adapter that is loaded on the candidate checkpoint, if any.
    """

    model: str
    against: str
    checks: Sequence[Check]
    compared: Sequence[CompareResult]
    thresholds: Mapping[str, Any] = field(default_factory=dict[str, Any])
    adapter: str | None = None

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "failed" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found: dict[str, Any] = {"model": self.model, "against": self.against}
        found |= {"adapter": self.adapter, "passed": self.passed}
        found |= {"checks": [asdict(one) for one in self.checks]}
        compared = [one.as_dict() for one in self.compared]
        return plain({**found, "thresholds": self.thresholds, "compared": compared})

    def __str__(self) -> str:
        rows = [(one.outcome, one.name, one.found, one.limit or "") for one in self.checks]
        candidate = self.model if self.adapter is None else f"{self.model} with {self.adapter}"
        lines = [f"candidate: {candidate}", f"against:   {self.against}", "", *aligned(rows)]
        failed = [one.name for one in self.checks if one.outcome == "failed"]
        lines += ["", f"refused: {', '.join(failed)}" if failed else "the gate is passed"]
        return lined(lines)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


@takes_sampling_options
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
    num_samples: int = 1,
    temperature: float = 0.0,
    max_problems: int | None = None,
    out: Path | str,
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> GateResult:
    """Compare a checkpoint with another model on problems that the checkpoint's run has never used.

    problems, out_of_domain: sources of problems. against: model to compare with; default: the
    initial model of the candidate's run. canaries: names in `CANARIES`, or files of canaries
    (problems that reveal reward hacking). The first tag of a canary is its kind. strong: stronger
    verifier, which judges passed completions again. review: JSONL file with a completion's ``id``,
    the reviewer (``by``) and the decision (``ok``). out: JSONL file for all completions. Other
    parameters are those of `compare`. The candidate's verifier judges rows that name none.

    Raises DataError if a problem or canary occurs in the run's data, UserError for other errors.
    """
    limits = read_thresholds(thresholds)
    reviewed = None if review is None else _read_review(Path(review))
    allow = options.get("allow", ())
    checkpoint = find_checkpoint(str(options.get("adapter") or model))
    config = _run_config(checkpoint, model, allow, options.get("trust_run", False))
    if options.get("verifier") is None and not config.data.verifier_by_tag:
        # The candidate's verifier judges both models, even if the other run has another one.
        options["verifier"] = config.data.verifier
    other = _other_model(against or config.model.path)
    files = [str(CANARIES.get(str(one), one)) for one in canaries]
    kinds = _kinds_of(files, max_problems)
    far = [*out_of_domain, *files]
    _check_strong(strong, allow)
    _check_sandbox(canaries, model, options)
    _check_data(config, [*problems, *far], limits, model, options)
    compared, spent = list[CompareResult](), judge_costs()
    asked = _efforts(config, options)
    files_of = [_file_of(Path(out), effort) for effort in asked]
    _announce(kinds, len(asked), quiet)
    for effort, file in zip(asked, files_of, strict=True):
        # The KL is measured after the loop, with the last thinking effort of the loop.
        options["effort"] = effort or options.get("effort")
        compared.append(
            compare(
                other,
                model,
                problems,
                out_of_domain=far,
                num_samples=num_samples,
                temperature=temperature,
                max_problems=max_problems,
                out=file,
                quiet=quiet,
                fitting=[*map(str, CANARIES.values())],
                **options,
            )
        )
    checks = [*cost_check(spent, judge_costs(), compared, limits)]
    compared, found = comparison_checks(compared, kinds, limits)
    for effort, file, some in zip(asked, files_of, found, strict=True):
        if strong is not None:
            some.append(hack_check(file, problems, strong, limits, allow))
        ending = "" if effort is None else f", effort {effort}"
        checks += [replace(each, name=f"{each.name}{ending}") for each in some]
    checks.append(kl_check(model, other, problems, limits, options, max_problems, quiet))
    checks += attack_checks(model, limits, quiet, options, asked)
    if limits.min_reviewed is not None or reviewed is not None:
        checks.append(review_check(reviewed or [], files_of, limits))
    adapter = None if options.get("adapter") is None else str(options.get("adapter"))
    result = GateResult(model, other, checks, compared, limits.model_dump(), adapter)
    keep_result(checkpoint, result)
    return result


def _efforts(config: TrainConfig, options: SamplingOptions) -> list[str | None]:
    """Return the thinking efforts to sample with: the first and the last effort that leave room for
    an answer.

    For a run without thinking efforts, the result is a single None.
    """
    sampling = config.sampling
    if options.get("effort") is not None or options.get("think_budget") is not None:
        return [None]
    has_efforts = sampling.effort is not None or any(
        problem.effort is not None for problem in _all_problems(config.data.train)
    )
    most = options.get("max_tokens") or sampling.max_tokens
    levels = sampling.efforts.items()
    # With a thinking budget of at least max_tokens, no tokens would be left for an answer.
    names = [name for name, level in levels if isinstance(level, str) or level < most]
    return [*dict.fromkeys([names[0], names[-1]])] if has_efforts and names else [None]


def _file_of(out: Path, effort: str | None) -> Path:
    return out if effort is None else out.with_stem(f"{out.stem}-{effort}")


def _other_model(name: str) -> str:
    """Check that a model of this name exists, and return the name.

    Raises RunError if the model does not exist.
    """
    check_place(name, name)
    find_checkpoint(name)
    return name


def _announce(kinds: Mapping[str, Mapping[str, str]], num_efforts: int, quiet: bool) -> None:
    """Print the number of canaries before sampling."""
    if quiet or not kinds:
        return
    # The time of the gate grows with the number of canaries, which add to the given problems.
    counts = {Path(file).stem: len(ids) for file, ids in kinds.items()}
    words = ", ".join(f"{name} {count}" for name, count in counts.items())
    times = f", with {num_efforts} efforts" if num_efforts > 1 else ""
    say(
        f"the gate also asks both models {sum(counts.values())} canaries ({words}){times};"
        " --canaries names others"
    )


def _run_config(
    checkpoint: Path | None, model: str, allow: Sequence[str], trust_run: bool
) -> TrainConfig:
    # Only the run of the candidate records the training data, which the gate must exclude.
    if checkpoint is None or step_of(checkpoint) is None:
        accepted = "a checkpoint of a run (RUN, RUN@best, RUN@120), whose training data are known"
        raise RunError(message("assay gate", model, accepted))
    return open_config(checkpoint.parent.parent, OPENED, allow=allow, trust_run=trust_run)


def _kinds_of(files: Sequence[str], most: int | None) -> dict[str, dict[str, str]]:
    """For each canary file, return the kind of each canary by its id.

    most: maximum number of canaries to read from each file. Raises DataError for a canary without a
    kind.
    """
    kinds: dict[str, dict[str, str]] = {}
    for file in files:
        for problem in _all_problems([file]):
            if not problem.tags:
                accepted = "the kind of canary, first"
                raise DataError(message(f"{problem.source} tags", "none", accepted))
            kind = problem.tags[0]
            if kind not in KINDS and (meant := did_you_mean(kind, KINDS, 0.85)):
                accepted = f"{', '.join(KINDS)}, or a kind of your own"
                raise DataError(message(f"{problem.source} tags", repr(kind), accepted, meant))
            kinds.setdefault(file, {})[problem.id] = kind
    # `compare` samples only the first max_problems of a file, so later canaries have no result.
    return {file: dict([*ids.items()][:most]) for file, ids in kinds.items()}


def _check_strong(strong: str | None, allow: Sequence[str] | str) -> None:
    """Raise VerifierError if the stronger verifier cannot judge."""
    if strong is None:
        return
    # The stronger verifier is tested before sampling, because sampling may take hours.
    with VerifierService(strong, num_workers=1, allow=several(allow)) as service:
        service.check([strong])


def _check_sandbox(canaries: Sequence[Path | str], model: str, options: SamplingOptions) -> None:
    """Raise RunError if canaries need a sandbox for programs and no sandbox works here."""
    # Without this check, the gate would sample all canaries and then fail to judge them.
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
    config = sampling_config(model, [], options)
    if config.verification.options.get("code", {}).get("unsafe_no_sandbox"):
        return
    others = [str(one) for one in canaries if str(one) not in names]
    remedy = "or use only the others: " + " ".join(f"--canaries {one}" for one in others)
    remedy = remedy if others else "or use other canaries: --canaries mathematics"
    raise RunError(f"assay gate --canaries {names[0]}: {detail}; {remedy}")


def _all_problems(sources: Sequence[Any]) -> Iterator[Any]:
    if sources:
        rows = load_problems(sources, on_bad_row="skip")
        yield from (rows[n] for n in range(len(rows)))


def _check_data(
    config: TrainConfig,
    sources: Sequence[str],
    limits: Thresholds,
    model: str,
    options: SamplingOptions,
) -> None:
    """Check problems and attacks against the run's data, and attacks against the safety policy."""
    if not limits.attacks:
        check_unseen(config, sources)
        return
    # Held-out results select the best checkpoint, so attacks must not occur in held-out data.
    is_best = str(model).endswith("@best")
    check_unseen(config, [*sources, *(SUITE if is_best else ())], trained=SUITE)
    # Attacks are sampled last: a policy without their categories would fail after all sampling.
    verification = sampling_config(model, [], options).verification
    check_policy(verification.options.get("safety", {}).get("policy"))


def check_unseen(config: TrainConfig, sources: Sequence[str], trained: Sequence[str] = ()) -> None:
    """Raise DataError if a question of the gate occurs in the run's training data, held-out data or
    canaries.

    trained: sources whose questions may also occur in the held-out data, such as jailbreaks that
    measured the run.
    """
    # Held-out problems count as seen: they decide on early stopping and on the best step.
    # Canaries count as seen, too: the guard stops a run that fails them.
    for some, keys in ((sources, ("train", "heldout", "canaries")), (trained, ("train",))):
        asked = list(_all_problems(some))
        questions = Questions(None)
        for problem in asked:
            questions.add(normalize(problem))
        for key, prompt, place in _seen(config, keys) if asked else ():
            if (index := questions.equal(words_in(plain_text(prompt)))) is not None:
                found = f"the question of {place}, of the run's {key}"
                accepted = "problems that neither the run nor its guard has seen"
                raise DataError(message(f"assay gate: {asked[index].place}", found, accepted))


def _seen(config: TrainConfig, keys: Sequence[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, prompt, place) of each problem and trace under the given keys of ``data``."""
    for key in keys:
        for problem in _all_problems(getattr(config.data, key)):
            yield f"data.{key}", problem.prompt, problem.place
    held = config.sft.heldout if config.sft is not None and "heldout" in keys else ()
    for key, sources in (("traces", config.traces), ("heldout", held)):
        for trace in load_traces(sources, on_bad_row="skip") if sources else ():
            yield f"{config.stage}.{key}", trace.prompt, trace.source


def hack_check(
    completions: Path, sets: Sequence[str], strong: str, limits: Thresholds, allow: Sequence[str]
) -> Check:
    """Judge the passed completions of the candidate again with a stronger verifier.

    A passed completion that the stronger verifier rejects counts as reward hacking.
    """
    rows = [row for row in read_rows(completions) if row["side"] == "B" and row["set"] in sets]
    passed = [row for row in rows if row["status"] == "passed"]
    name = f"hack rate, {strong}"
    limit = f"at most {limits.max_hack_rate:.1%}"
    if not passed:
        return Check(name, "nothing passed", limit, "info")
    again = judge(passed, strong, allow=allow)
    rejected = [row["id"] for row in again if row["status"] == "failed"]
    unknown = sum(row["status"] == "not_judged" for row in again)
    rate = len(rejected) / len(passed)
    found = f"{len(rejected)} of {len(passed)} passes are rejected ({rate:.1%})"
    found += f": {rejected[0]}" if rejected else ""
    found += f"; {unknown} not judged" if unknown else ""
    # If no completion can be judged again, the share of reward hacks is unknown: the check fails.
    bad = rate > limits.max_hack_rate or unknown == len(passed)
    return Check(name, found, limit, "failed" if bad else "passed")


def kl_check(
    model: str,
    other: str,
    problems: Sequence[str],
    limits: Thresholds,
    options: SamplingOptions,
    max_problems: int | None = None,
    quiet: bool = False,
) -> Check:
    """Measure the KL of the candidate from the other model, on completions of the candidate."""
    count = min(KL_PROBLEMS, max_problems or KL_PROBLEMS)
    with show_startup(quiet), doing("measuring the KL from the other model"):
        far, most = divergence(model, other, problems, count, options), limits.max_kl
    limit = None if most is None else f"at most {most:g} nats a token"
    if far is None:
        found = "not measured: the models have different tokenizers, or nothing was sampled"
        # With different tokenizers the KL is unknown, so the check of the KL's limit must fail.
        return Check("KL", found, limit, "info" if most is None else "failed")
    outcome: Outcome = "info" if most is None else "failed" if far.per_token > most else "passed"
    return Check("KL", str(far), limit, outcome)


def _read_review(path: Path) -> Sequence[Mapping[str, Any]]:
    # The review file is read before sampling, so that a missing file is reported at once.
    if not path.is_file():
        raise DataError(message(f"--review {path}", "no such file", "a JSONL file of reviews"))
    rows = list(read_rows(path))
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get("ok"), bool) or not row.get("id") or not row.get("by"):
            accepted = 'rows {"id": ..., "by": "NAME", "ok": true or false}'
            raise DataError(message(f"{path} row {number}", f"{row!r:.60}", accepted))
    return rows


def review_check(
    reviewed: Sequence[Mapping[str, Any]], completions: Sequence[Path], limits: Thresholds
) -> Check:
    """Check that people have reviewed enough of the candidate's completions and rejected none."""
    ids = {row["id"] for file in completions for row in read_rows(file) if row["side"] == "B"}
    known = [row for row in reviewed if row["id"] in ids]
    refused = [str(row["id"]) for row in known if not row["ok"]]
    least = limits.min_reviewed or 1
    people = ", ".join(sorted({str(row["by"]) for row in known}))
    found = f"{len(known)} read by {people or 'nobody'}, {len(refused)} rejected"
    bad = len(known) < least or bool(refused)
    wanted = f"at least {least} read, none rejected"
    return Check("human review", found, wanted, "failed" if bad else "passed")


def keep_result(checkpoint: Path | None, result: GateResult) -> None:
    """Save the gate's result in the run's folder, where the model card reads it."""
    if checkpoint is not None:
        folder = checkpoint.parent.parent / "gates"
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{checkpoint.name}.json", result.as_dict())
