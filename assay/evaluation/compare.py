"""Compare two models on the same problems: difference in accuracy, and preferences of a judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Generator as Yields
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from assay import config as configuration
from assay.config import SamplingConfig, TrainConfig
from assay.data.chat import PromptRenderer, keep_fitting
from assay.data.problems import ProblemSet, load_problems
from assay.data.source import Source
from assay.data.sources import Rows, as_sources
from assay.errors import ConfigError, DataError, VerifierError, message
from assay.evaluation.compare_result import ComparedSet, CompareResult, compared, with_p_of_all
from assay.evaluation.preference_judge import Candidates, Preferring, open_judge
from assay.evaluation.recorded_completions import RecordedCompletions
from assay.generate.base import Generator
from assay.host.files import check_output, open_output
from assay.host.startup import doing
from assay.run.names import run_of
from assay.run.startup import show_startup
from assay.session.assemble import open_verifiers, show_sampling, with_slots
from assay.session.completion_server import find_served
from assay.session.evaluate import Evaluation, Judge, evaluate
from assay.session.evaluation_log import EvaluationLog, resumable, settings_of
from assay.session.results import sample_lines
from assay.session.sampling import (
    SamplingOptions,
    asks_thinking,
    sampling_config,
    takes_sampling_options,
)
from assay.session.sampling_session import check_sampling, open_sampling
from assay.session.thinking import useless_thinking
from assay.types import Group, Problem, Verdict
from assay.verify.learned.pairwise import length_controlled_win_rate, win_rate
from assay.verify.service import VerifierService


@takes_sampling_options
def compare(
    a: Path | str,
    b: Path | str,
    problems: Rows = (),
    *,
    out_of_domain: Rows = (),
    judge: str | None = None,
    num_samples: int = 1,
    temperature: float = 0.0,
    max_problems: int | None = None,
    out: Path | str | None = None,
    fitting: Sequence[str] = (),
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> CompareResult:
    """Compare two models on the same problems, with the same random numbers for sampling.

        found = assay.compare("runs/cold", "runs/first", "sums.jsonl", out_of_domain="gsm.jsonl")
        print(found)
        found.sets[0].gain.value, found.sets[0].gain.interval, found.sets[0].p_value

    a, b: models as `evaluate` takes them, or JSONL files of recorded completions (``out`` of
    `evaluate`), which are judged again. If only one of the two models is a run, its sampling
    settings apply to both models. problems: rows or sources, each of which is a separate set; for
    two files, None compares the recorded verdicts. out_of_domain: problem sets that differ from the
    training data.
    judge: ``pairwise`` (the model of ``verification.options.judge``, which sees each pair in both
    orders) or a verifier (the higher reward wins). max_problems: number of problems of each set to
    use, from the
    start. out: JSONL file for all completions, which a later call accepts as ``a`` or ``b``.
    fitting: names of sources from which problems with too long prompts are left out. adapter:
    adapter that is loaded on ``b`` only, so that both models may share one base model.

    All other parameters of `compare` are those of `evaluate`. Raises UserError for invalid input.
    """
    configuration.check_siblings(num_samples, temperature)
    names = (str(a), str(b))
    files = _files(names)
    sources, judged = _sources(problems, out_of_domain, out, files)
    configs = _configs(names, [str(one) for one, _ in sources], options)
    for config in configs:
        check_sampling(config)
    # One verifier judges both models: that of the run, if either model belongs to a run.
    common = configs[0] if _is_of_run(configs[0]) else configs[1]
    if not any(files):
        _check_two_served(configs)
    with ExitStack() as stack:
        with show_startup(quiet):
            judged &= options.get("verifier") is None
            verifiers = None if judged else open_verifiers(common, stack, actors=True)
            judging = None if judge is None else open_judge(judge, common, stack)
            about = (common, verifiers, max_problems, judging, fitting)
            sets = [_open_set(*one, *about) for one in sources]
        if options.get("verifier") is None:
            _check_one_verifier(configs, sets)
        kept = None
        if out is not None:
            facts = _facts(configs, files, temperature, num_samples)
            kept = stack.enter_context(EvaluationLog(Path(out), facts))
        file = None if out is None else stack.enter_context(_Lines(Path(out)))
        found: list[list[_Measured]] = []
        adapter = options.get("adapter")
        shown = (names[0], names[1] if adapter is None else f"{names[1]} with {adapter}")
        for name, side, config, recorded in zip(shown, "AB", configs, files, strict=True):
            sampling = configuration.at_temperature(config.sampling, temperature)
            asked = _Asked(name, side, sampling, file, judging is not None, kept)
            if recorded is not None:
                found.append([asked.measure_file(recorded, one, judged) for one in sets])
                continue
            assert verifiers is not None, "only files have recorded verdicts"
            with _engine(config, verifiers, sets, num_samples, quiet) as sampler:
                found.append([sampler(asked, one) for one in sets])
        each = zip(sets, found[0], found[1], strict=True)
        results = [_result(one, mine, its, judging) for one, mine, its in each]
    most = max(one.num_samples for side in found for one in side)
    heat = None if all(files) else temperature
    notes = [] if any(files) else [*_unequal(configs)]
    notes += [*_useless(found)] if asks_thinking(options) else []
    return CompareResult(*shown, with_p_of_all(results), judge, heat, most, notes)


@dataclass(frozen=True)
class _Set:
    """A problem set on which both models are measured.

    verifiers: source of the verdicts. Without expected answers all verdicts are *not judged*, and
    only the preference judge compares the completions.
    """

    name: str
    out_of_domain: bool
    problems: ProblemSet
    verifiers: Judge
    fitting: bool = False


@dataclass
class _Measured:
    """Evaluation of one model on one problem set.

    kept: sampled groups by problem id, for the preference judge. left_out: ids of problems whose
    prompts are too long for the context. useless: error text for a think setting without effect,
    because no prompt has a think block.
    """

    evaluation: Evaluation
    num_samples: int
    num_characters: int = 0
    kept: dict[str, Group] = field(default_factory=dict[str, Group])
    left_out: Sequence[str] = ()
    useless: str = ""

    @property
    def characters(self) -> float:
        return self.num_characters / max(1, self.evaluation.num_completions)


def _files(names: Sequence[str]) -> list[RecordedCompletions | None]:
    """Open files of recorded completions; None stands for the name of a model."""
    return [
        RecordedCompletions(Path(name), side) if _is_file(name) else None
        for name, side in zip(names, "AB", strict=True)
    ]


def _is_file(name: str) -> bool:
    path = Path(name).expanduser()
    # A GGUF file is a model; any other file contains recorded completions.
    return path.is_file() and path.suffix != ".gguf"


def _sources(
    problems: Rows,
    out_of_domain: Rows,
    out: Path | str | None,
    files: Sequence[RecordedCompletions | None],
) -> tuple[list[tuple[str | Source, bool]], bool]:
    """Return (source, whether out of domain) pairs, and whether the compared files themselves
    contain problems and verdicts.

    Raises ConfigError if there are no problems, or if ``out`` is one of the sources.
    """
    if out is not None:
        check_output(Path(out))
    near, far = as_sources(problems), as_sources(out_of_domain)
    judged = False
    if not near and not far and (both := [one for one in files if one is not None]) == [*files]:
        near = both[0].problems()
        # Rows do not name the verifier of their verdict, so a second judgement could differ.
        # Recorded verdicts are therefore not judged again.
        judged = all(one.has_verdicts for one in both)
    found = [*((one, False) for one in near), *((one, True) for one in far)]
    names = [str(one) for one, _ in found]
    if not found:
        remedy = "to compare what two runs recorded: assay run compare A B"
        where, accepted = "compare", "problems (--problems, --out-of-domain)"
        raise ConfigError(message(where, "no problems", accepted, remedy))
    for name in names:
        if names.count(name) > 1:
            raise DataError(message(name, "the same source twice", "each source once"))
        if out is not None and Path(name).expanduser().resolve() == Path(out).resolve():
            raise ConfigError(message(f"--out {out}", "a source of problems", "another file"))
    return found, judged


def _is_of_run(config: TrainConfig) -> bool:
    places = filter(None, (config.model.path, config.model.adapter))
    return any(run_of(Path(one)) is not None for one in places)


def _configs(
    names: tuple[str, str], sources: Sequence[str], options: SamplingOptions
) -> tuple[TrainConfig, TrainConfig]:
    """Return the sampling configurations of model A and model B.

    If only one of the models has a run, both models use the settings of this run.
    """
    if options.get("adapter") is not None and _is_file(names[1]):
        found, accepted = "a file of recorded completions", "a model"
        raise ConfigError(message(f"compare: B {names[1]}, with an adapter", found, accepted))
    # Only model B gets the adapter, so that a base model can be compared with its adapted version.
    each: tuple[SamplingOptions, SamplingOptions] = ({**options, "adapter": None}, options)
    own = [sampling_config(name, sources, one) for name, one in zip(names, each, strict=True)]
    runs = [_is_of_run(config) for config in own]
    if runs[0] != runs[1]:
        run, other = runs.index(True), runs.index(False)
        # A model without a run is sampled with the chat template and settings of the other's run.
        own[other] = own[run].model_copy(update={"model": own[other].model})
    return own[0], own[1]


def _facts(
    configs: Sequence[TrainConfig],
    files: Sequence[RecordedCompletions | None],
    temperature: float,
    num_samples: int,
) -> dict[str, Any]:
    """Return the sampling settings of each model's completions; None for recorded completions."""
    facts: dict[str, Any] = {}
    for side, config, recorded in zip("AB", configs, files, strict=True):
        sampling = configuration.at_temperature(config.sampling, temperature)
        facts[side] = settings_of(config, sampling, num_samples) if recorded is None else None
    return facts


def _check_two_served(configs: tuple[TrainConfig, TrainConfig]) -> None:
    """Raise ConfigError if a server would sample both A and B from the same model."""
    if configs[0].server.url is None:
        return
    first, second = (find_served(one.server, one.model).name for one in configs)
    if first == second:
        found, accepted = f"{first} for A and for B", "a server that lists both models"
        remedy = "sample each with assay eval --server URL --out FILE, and compare the files"
        raise ConfigError(message(f"server.url {configs[0].server.url}", found, accepted, remedy))


def _check_one_verifier(configs: Sequence[TrainConfig], sets: Sequence[_Set]) -> None:
    """Raise ConfigError if rows name no verifier and the two runs have different verifiers."""
    # With a different verifier for each model, a gain could come from the verifiers alone.
    first, second = (
        " ".join([config.data.verifier, *map("=".join, config.data.verifier_by_tag.items())])
        for config in configs
    )
    unnamed = (one.problems[n].verifier is None for one in sets for n in range(len(one.problems)))
    if first != second and any(unnamed):
        found = f"{first} in the run of A and {second} in that of B"
        accepted = "the same verifier for both"
        raise ConfigError(message("compare", found, accepted, f"add --verifier '{second}'"))


@doing("checking the rows")
def _open_set(
    source: str | Source,
    out_of_domain: bool,
    config: TrainConfig,
    verifiers: VerifierService | None,
    limit: int | None,
    judging: Preferring | None,
    fitting: Sequence[str],
) -> _Set:
    """Open a source of problems; with a preference judge, problems may lack an expected answer.

    verifiers: verifiers of the problems; None for problems with recorded verdicts, which need no
        verifier.
    """
    check = None if verifiers is None else verifiers.check_problem
    check = check if judging is None else judging.check
    on_bad_row = config.data.on_bad_row
    problems = load_problems([source], on_bad_row=on_bad_row, limit=limit, check=check)
    judge: Judge = verifiers or _Unverified()
    # Problems without an answer need no verifier if a preference judge compares the completions.
    if judging is not None and verifiers is not None:
        try:
            for n in range(len(problems)):
                verifiers.check_problem(problems[n])
        except VerifierError:
            judge = _Unverified()
    return _Set(str(source), out_of_domain, problems, judge, str(source) in fitting)


class _Unverified:
    """Judge for problems without an expected answer: every completion is *not judged*."""

    @contextmanager
    def judging(self) -> Yields[_Unverified]:
        yield self

    def add(self, group: Group) -> None:
        """Do nothing."""

    def verdicts(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Return the status *not judged* for every completion."""
        none = Verdict.not_judged("unavailable", "none", detail="the row has nothing to verify")
        return [(none,) * len(group.completions) for group in groups]


@dataclass(frozen=True)
class _Asked:
    """A model to sample from.

    file: output for every completion. keeps: whether sampled groups are stored for a preference
    judge. kept: file of finished completions, from which a repeated call continues.
    """

    name: str
    side: str
    sampling: SamplingConfig
    file: Any
    keeps: bool
    kept: EvaluationLog | None = None

    def measure_file(self, file: RecordedCompletions, one: _Set, judged: bool) -> _Measured:
        """Measure the completions in a file of recorded completions. judged: use their recorded
        verdicts.
        """
        problems, most = file.of(one.name, [one.problems[n] for n in range(len(one.problems))])
        verifiers = file if judged else one.verifiers
        return self.measure(file, problems, most, replace(one, verifiers=verifiers))

    def measure(
        self, generator: Generator, problems: Sequence[Problem], num_samples: int, one: _Set
    ) -> _Measured:
        """Sample completions of a set's problems and judge them."""
        done = _Measured(Evaluation(0, 0, 0, 0.0, None), num_samples)

        def keep(group: Group, verdicts: Sequence[Verdict]) -> None:
            # Lengths are counted in characters, because two models may have different tokenizers.
            done.num_characters += sum(len(each.text) for each in group.completions)
            if self.keeps:
                done.kept[group.problem.id] = group
            if self.file is None:
                return
            columns = {"side": self.side, "model": self.name, "set": one.name}
            self.file.writelines(sample_lines(group, verdicts, **columns))

        done.evaluation = evaluate(
            generator, one.verifiers, problems, self.sampling, num_samples, keep
        )
        return done


@contextmanager
def _engine(
    config: TrainConfig,
    verifiers: VerifierService,
    sets: Sequence[_Set],
    num_samples: int,
    quiet: bool,
) -> Yields[Callable[[_Asked, _Set], _Measured]]:
    """Load a model and yield a function that samples from the model; free the model's memory on
    exit."""
    # The first model is closed before the second is loaded: both may not fit in memory.
    with ExitStack() as stack:
        # One engine serves all sets, so it has enough slots for the largest set.
        most = max(len(one.problems) for one in sets) * num_samples
        with show_startup(quiet):
            session = open_sampling(with_slots(config, most), verifiers, stack)
            bad_row = config.data.on_bad_row
            with doing("rendering the rows"):
                fitted = {one.name: _fitting(one, session.renderer, bad_row) for one in sets}
        watch = show_sampling(session.generator, stack, quiet)

        def sample(asked: _Asked, one: _Set) -> _Measured:
            problems = fitted[one.name]
            useless = useless_thinking(session.renderer, problems, asked.sampling)
            with watch.doing(f"{asked.side}, {one.name}", len(problems) * num_samples):
                generator = resumable(session.generator, asked.kept, f"{asked.side} {one.name}")
                done = asked.measure(generator, problems, num_samples, one)
            if one.fitting:
                done.left_out = sorted(set(_ids(one.problems)) - set(_ids(problems)))
            return replace(done, useless=useless)

        yield sample


def _fitting(one: _Set, renderer: PromptRenderer, on_bad_row: str) -> ProblemSet:
    if not one.fitting:
        return keep_fitting(one.problems, renderer, on_bad_row)
    try:
        return keep_fitting(one.problems, renderer, "skip")
    # `keep_fitting` raises if no prompt fits the context; a comparison may have an empty set.
    except DataError:
        return one.problems.select([])


def _ids(problems: ProblemSet) -> Yields[str]:
    yield from (problems[n].id for n in range(len(problems)))


class _Lines:
    """A completions file that is created at the first write, so that early errors leave no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()
        self._file: Any = None

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines to a file, creating the file if needed."""
        if self._file is None:
            self._file = self._stack.enter_context(open_output(self._path))
        self._file.writelines(lines)


def _result(one: _Set, a: _Measured, b: _Measured, judging: Preferring | None) -> ComparedSet:
    both = (a.evaluation, b.evaluation)
    found = compared(one.name, one.out_of_domain, both, (a.characters, b.characters))
    found = replace(found, left_out=tuple(sorted({*a.left_out, *b.left_out})))
    if judging is None:
        return found
    pairs: list[Candidates] = [
        # The judge reports the win rate of the first completion, so model B's comes first.
        (group.problem, its, mine)
        for id, group in a.kept.items()
        if id in b.kept
        # Two recorded files may have different numbers of completions for a problem.
        for mine, its in zip(group.completions, b.kept[id].completions, strict=False)
    ]
    comparisons = judging.judge(pairs)
    judged = [each for each in comparisons if each.outcome is not None]
    if not judged:
        why = next((f": {each.reason}, {each.detail}" for each in comparisons), "")
        return replace(found, not_compared=f"no pair of {len(pairs)} was judged{why}")
    even = length_controlled_win_rate(comparisons)
    return replace(found, wins=win_rate(comparisons), wins_at_equal_length=even)


def _useless(found: Sequence[Sequence[_Measured]]) -> Yields[str]:
    """Yield a note for each model without a think block in any prompt, where think options have no
    effect."""
    for side, own in zip("AB", found, strict=True):
        if all(one.useless for one in own):
            yield f"note: {side}: {own[0].useless}"


def _unequal(configs: Sequence[TrainConfig]) -> Yields[str]:
    """Yield notes on settings other than temperature that differ between the models' runs."""
    first, second = (config.sampling.model_dump() for config in configs)
    for key in first.keys() - {"temperature"}:
        if first[key] != second[key]:
            yield f"note: sampling.{key} is {first[key]} for A and {second[key]} for B"
    first, second = (config.data.model_dump() for config in configs)
    for key in ("template", "prompt_template", "system_prompt", "think"):
        if first[key] != second[key]:
            yield f"note: data.{key} is {first[key]!r} for A and {second[key]!r} for B"
