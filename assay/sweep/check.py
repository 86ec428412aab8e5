"""Check a sweep before any training: settings, data rows, comparability of the arms, report set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from assay.config import STAGES, TrainConfig
from assay.config.preference import FILE_PREFIX, RUN_PREFIX
from assay.curation.output import is_run
from assay.data.completions import DOCUMENT, Record
from assay.data.overlap import Questions, normalize, words_in
from assay.data.problems import load_problems
from assay.data.rowset import load_rows
from assay.data.sources import python_name
from assay.errors import AssayError, ConfigError, DataError, RunError, message
from assay.recipes.check import check_rows
from assay.session.consent import open_config
from assay.sweep.file import SweepFile
from assay.sweep.metric import is_of_evaluations
from assay.sweep.trials import ArmComplaints, Trial, outputs_of
from assay.verify.expression import parse_expression

SOURCES = ("data.train", "data.heldout", "data.canaries", *STAGES)
"""Keys and sections of a run that name the sources of its rows."""
FIRST = ", first term"
FIRST_TERM = f"data.verifier{FIRST}"


def check_sweep(file: SweepFile, trials: Sequence[Trial], parallel: int) -> None:
    """Raise ConfigError with every fault of a sweep's trials, for one or more seeds.

    Settings are checked first; data rows are read only if the settings have no fault.
    """
    first = [trial for trial in trials if trial.seed == trials[0].seed]
    checks = (_without_effect(file, first), _not_comparable(file, first), _threads(first, parallel))
    complaints = [one for check in checks for one in check]
    if not complaints:
        _check_rows(file, first)
    if not complaints and file.settings.report is not None:
        complaints = [*overlap(file, trials)]
    if complaints:
        raise ConfigError.of([*dict.fromkeys(complaints)])


def _without_effect(file: SweepFile, trials: Sequence[Trial]) -> Iterator[str]:
    """Yield a message for each arm whose settings equal those of an earlier arm."""
    known: list[Trial] = []
    for trial in sorted(trials, key=lambda one: one.arm != file.settings.baseline):
        same = next((one for one in known if one.settings == trial.settings), None)
        if same is not None:
            found = f"the settings of {same.arm}"
            accepted = "settings that differ from those of every other arm"
            yield message(file.place(f"arms.{trial.arm}"), found, accepted, "change its set")
        known.append(trial)


def _not_comparable(file: SweepFile, trials: Sequence[Trial]) -> Iterator[str]:
    """Yield a message for each arm whose held-out accuracy is measured differently from the
    baseline's.
    """
    if not is_of_evaluations(file.settings.metric):
        return
    alike = {trial.arm: measured_by(trial.configs[-1]) for trial in trials}
    of_baseline = alike[file.settings.baseline]
    for arm, measured in alike.items():
        for key in {**of_baseline, **measured}:
            # Rows of a tag without a verifier of its own are judged by the default verifier.
            # If only one arm uses a verifier, another setting differs; its options are skipped.
            usual, value = (
                one.get(key, one[FIRST_TERM] if key.endswith(FIRST) else None)
                for one in (of_baseline, measured)
            )
            if value == usual or None in (value, usual):
                continue
            remedy = ""
            if key.endswith(FIRST):
                remedy = "keep the first term, with weight 0 if the arm must not be rewarded for it"
            accepted = f"{usual}, as in {file.settings.baseline}, or the metric differs"
            yield message(f"{file.place(f'arms.{arm}')} {key}", value, accepted, remedy)
    if not _heldout(trials[0].configs[-1]):
        where = f"{file.place('base')} data.heldout"
        remedy = "or choose a metric of the training steps"
        yield message(where, "none", f"problems, to measure {file.settings.metric}", remedy)


def measured_by(config: TrainConfig) -> dict[str, str]:
    """Return all settings that determine how held-out accuracy is measured."""
    data, evaluation, own_options = config.data, config.evaluation, config.verification.options
    terms = {f"data.verifier_by_tag.{tag}{FIRST}": one for tag, one in data.verifier_by_tag.items()}
    terms[FIRST_TERM] = data.verifier
    first = {key: parse_expression(one)[0].name for key, one in terms.items()}
    names = dict.fromkeys(name for one in first.values() for name in one.split("|"))
    # Options of a verifier can change which answers count as correct.
    options = {f"verification.options.{one}": str(own_options.get(one, {})) for one in names}
    return {
        "data.heldout": ", ".join(_heldout(config)) or "none",
        "evaluation.temperatures": str([*evaluation.temperatures]),
        "evaluation.num_samples": str(evaluation.num_samples),
        "evaluation.max_problems": str(evaluation.max_problems or "all"),
        **first,
        **options,
    }


def _heldout(config: TrainConfig) -> tuple[str, ...]:
    own = getattr(getattr(config, config.stage), "heldout", ())
    # In [sft], the accuracy on problems decides before the loss on traces.
    if config.sft is not None:
        return config.data.heldout or own
    return tuple(own) or config.data.heldout


def _threads(trials: Sequence[Trial], parallel: int) -> Iterator[str]:
    """Yield a message if several runs that train at the same time would each use all CPU cores."""
    unset = [trial.arm for trial in trials if trial.configs[-1].run.threads is None]
    if parallel > 1 and unset:
        # The number of threads changes the last bits of a result.
        # The number of threads must therefore not depend on the option --parallel.
        # A sweep with serial runs and a sweep with parallel runs must give the same figures.
        accepted = "a number, or each of the runs takes all cores"
        remedy = (
            'add set = ["run.threads=1"] (in a recipe shared.run.threads=1) above the arms, or'
            " --set run.threads=1 to assay ablate"
        )
        found = f"no run.threads in {', '.join(unset)}"
        yield message(f"--parallel {parallel}", found, accepted, remedy)


def _check_rows(file: SweepFile, trials: Sequence[Trial]) -> None:
    """Raise ConfigError for arms whose data files have invalid rows or invalid verifiers."""
    complaints = ArmComplaints(file)
    for trial in trials:
        with complaints.of(trial.arm):
            _read(trial)
    complaints.finish()


def _read(trial: Trial) -> None:
    if trial.recipe is not None:
        check_rows([*trial.recipe.stages.values()], outputs_of(trial.recipe, Path(trial.name)), ())
        return
    from assay.report.alerts import check_listeners
    from assay.session.assemble import open_verifiers
    from assay.training.api import kind_of, settled

    (config,) = trial.configs
    check_listeners(config)
    config = settled(config)
    with ExitStack() as stack:
        kind_of(config).read(config, open_verifiers(config, stack))


@dataclass(frozen=True)
class _Prompt:
    """The words of a prompt, and the file and line of the prompt's row."""

    words: tuple[str, ...]
    place: str


def overlap(file: SweepFile, trials: Sequence[Trial]) -> Iterator[str]:
    """Yield a message for the first report question that also occurs in the training data of an
    arm.
    """
    report = file.settings.report
    assert report is not None
    where = file.place("report.problems")
    questions, places = Questions(None), list[str]()
    try:
        problems = load_problems(report.problems, limit=report.max_problems)
    except AssayError as error:
        yield f"{where}: {error}"
        return
    for problem in problems:
        questions.add(normalize(problem))
        places.append(problem.place)
    # Each data source is read only once, because arms usually share their data sources.
    for source, arm in _sources(trials).items():
        for prompt in _prompts(source):
            if (same := questions.equal(prompt.words)) is not None:
                found = f"{places[same]}, a question of {prompt.place} (arm {arm})"
                accepted = "problems that no arm trains or is chosen on"
                yield message(where, found, accepted, "remove it from one of the two")
                return


def _sources(trials: Sequence[Trial]) -> dict[str, str]:
    """Return each existing data source of the trials, with one of the arms that use the source."""
    found: dict[str, str] = {}
    for trial in trials:
        listed = [source for config in trial.configs for source in _of_config(config)]
        if trial.recipe is not None:
            for stage in trial.recipe.stages.values():
                listed += stage.tree.get("inputs", ()) if stage.kind == "data" else ()
        made = f"{Path(trial.name).absolute()}/"
        # Outputs of a recipe's own stages derive from data sources that are checked as well.
        own = ("@", f"{RUN_PREFIX}@", made, f"{RUN_PREFIX}{made}")
        # The loop appends to the list of sources, because a source run may itself learn from a run.
        listed = list(dict.fromkeys(listed))
        for source in listed:
            if source.startswith(own):
                continue
            if source.startswith(RUN_PREFIX) or is_run(source):
                more = _of_run(Path(source.removeprefix(RUN_PREFIX)), listed)
                listed += [one for one in dict.fromkeys(more) if one not in listed]
            else:
                found.setdefault(source.removeprefix(FILE_PREFIX), trial.arm)
    return found


def _of_run(run: Path, known: Sequence[str]) -> Iterator[str]:
    """Yield the data sources of another run, if an arm learns from the rollouts of that run."""
    names = [name for source in known if (name := python_name(source)) is not None]
    try:
        yield from _of_config(open_config(run, SOURCES, allow=names))
    except RunError as error:
        found = "sources that cannot be compared with the report problems"
        accepted = "a run of your own, or one whose sources are files"
        raise ConfigError(message(str(run), found, accepted)) from error


def _of_config(config: TrainConfig) -> Iterator[str]:
    yield from config.data.train
    yield from config.data.heldout
    yield from config.data.canaries
    section, key = STAGES[config.stage]
    yield from getattr(getattr(config, section), key, ())
    yield from getattr(getattr(config, section), "heldout", ())


def _prompts(source: str) -> Iterator[_Prompt]:
    """Yield the prompts of a data source, which has problems, traces, preference pairs or
    documents.
    """
    for row in load_rows("rows", Record.read, [source], on_bad_row="skip"):
        try:
            part = "all" if DOCUMENT in row.keys else "prompt"
            yield _Prompt(words_in(row.text(part)), row.source)
        except DataError:
            # Other types of rows, such as stored trees of thought, have no prompt to compare.
            continue
