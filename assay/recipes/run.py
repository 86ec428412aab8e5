"""Run the stages of a recipe in order, each stage in its own folder, and resume a killed recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from assay.config import STAGES
from assay.curation.base import run_stage
from assay.curation.output import rows_name
from assay.errors import AssayError, ConfigError, RunError, UserError, message
from assay.host.files import DirectoryLock, check_folder, make_folder
from assay.host.terminal import lined
from assay.recipes.check import (
    Look,
    check_rows,
    check_settings,
    look,
    make_tiny,
    naming,
    settings_of_data,
    settings_of_training,
)
from assay.recipes.cost import Cost, RowCounts, Total, total_of
from assay.recipes.file import Recipe, RecipeStage, find_recipe, read_recipe
from assay.recipes.manifest import NAME as MANIFEST
from assay.recipes.manifest import TINY, RecipeManifest, StageRow, inputs_of, settings_of
from assay.recipes.report import write_report
from assay.run.progress import format_seconds
from assay.run.signature import why_not_own, write_config

FILE = "recipe.toml"
Say = Callable[[str], None]


@dataclass(frozen=True)
class RecipeResult:
    """Result of a recipe's run.

    ended: reason of the end. stages: manifest row of each stage that this call ran or reused.
    """

    recipe: str
    folder: str
    ended: str
    stages: Sequence[StageRow]

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict of JSON values."""
        return {**asdict(self), "stages": [asdict(row) for row in self.stages]}

    def __str__(self) -> str:
        lines = [f"{self.recipe}: {self.ended}"]
        for row in self.stages:
            took = format_seconds(row.seconds)
            lines.append(f"  {row.stage:<16}{row.kind:<14}{row.ended or 'begun':<16}{took:>8}")
        if not self.ended.startswith("finished"):
            lines.append(f"continue with: assay recipe run --resume {self.folder}")
        return lined([*lines, f"report: {self.folder}/report.html"])


def open_recipe(
    name: str | None, resume: Path | None, scale: str | None, overrides: Sequence[str]
) -> Recipe:
    """Read a built-in recipe, a recipe file, or the recipe of a directory to resume."""
    if name is not None:
        return read_recipe(find_recipe(name), scale, overrides)
    if resume is None:
        raise UserError("assay recipe run: give a NAME or a FILE, or --resume DIR")
    path = resume / FILE
    if not path.is_file():
        found = f"no {FILE} in it"
        raise RunError(message(str(resume), found, "the directory of a recipe's run"))
    # A recipe can name Python code, which Assay imports.
    # A directory from another user is therefore resumed only if the user names its recipe file.
    if why := why_not_own(path):
        remedy = f"read it, then name it: assay recipe run {path} --resume {resume}"
        raise RunError(
            message(str(path), f"a recipe that may name code, and {why}", "yours", remedy)
        )
    if scale is not None:
        found = f"{scale} with --resume alone"
        remedy = "give the recipe's name too, to change it"
        raise ConfigError(message("--scale", found, "the scale with which it began", remedy))
    return replace(read_recipe(path, None, overrides), name=RecipeManifest.read(resume).name)


def run_recipe(
    name: str | None = None,
    *,
    directory: Path = Path("runs"),
    overrides: Sequence[str] = (),
    until: str | None = None,
    resume: Path | None = None,
    scale: str | None = None,
    accept_changed_verifiers: bool = False,
    quiet: bool = False,
    say: Say = print,
) -> RecipeResult:
    """Run the unfinished stages of a recipe.

    name: name of a built-in recipe, or path of a recipe file. overrides: changes of the form
    ``STAGE.KEY=VALUE``. until: name of the last stage to run. resume: directory of an earlier run
    of the recipe, whose finished stages are reused unless their keys or inputs have changed.
    accept_changed_verifiers: resume an unfinished stage although its reward has changed. say:
    function that prints progress.

    Raises UserError for invalid input. The message of a stage's error begins with the stage's name.
    """
    plan = _plan(name, directory, overrides, until, resume, scale)
    manifest = plan.manifest
    if resume is None:
        # The folder is created after all checks, so that an invalid recipe leaves no folder.
        manifest.folder = make_folder(directory, plan.recipe.name)
    # Two processes that resume one directory would overwrite each other's outputs.
    lock = DirectoryLock(manifest.folder)
    try:
        # The saved recipe contains all changes by scale and --set.
        # A resume therefore depends neither on the original recipe file nor on --set.
        write_config(manifest.folder / FILE, tomli_w.dumps(plan.recipe.as_tree()))
        try:
            ended = _run_stages(plan, accept_changed_verifiers, quiet, say)
        finally:
            # The report is also written after a failure.
            # The report then shows the failed stage and the results of the finished stages.
            write_report(manifest.folder)
    finally:
        lock.release()
    rows = [manifest.rows[stage.name] for stage in plan.stages if stage.name in manifest.rows]
    return RecipeResult(plan.recipe.name, str(manifest.folder), ended, rows)


def dry_run(
    name: str | None = None,
    *,
    overrides: Sequence[str] = (),
    until: str | None = None,
    resume: Path | None = None,
    scale: str | None = None,
    directory: Path = Path("runs"),
    quiet: bool = False,
) -> Iterator[Look | Total]:
    """Yield a preview of each unfinished stage, then the total cost.

    The parameters of this function are those of `run_recipe`. All keys and rows are checked before
    the first model is loaded.
    """
    plan = _plan(name, directory, overrides, until, resume, scale)
    stages, outputs, costs = plan.recipe.stages, plan.outputs, dict[str, Cost | None]()
    data = [one for one in plan.stages if one.kind == "data"]
    settings = {one.name: settings_of_data(one, outputs) for one in data}
    counts = RowCounts(stages, settings, outputs, plan.standing)
    for stage in plan.stages:
        if stage.name not in plan.standing:
            later = plan.later[stage.name]
            found = look(stage, stages, outputs, later, plan.standing, counts, quiet)
            costs[stage.name] = found.cost
            yield found
    yield total_of(costs)


@dataclass(frozen=True)
class _Plan:
    """Checked stages of a recipe.

    stages: stages to run, up to the stage ``until``. standing: manifest rows of finished stages to
    reuse.
    outputs: existing or future output of each stage. later: descriptions of each stage's missing
    inputs.
    """

    recipe: Recipe
    stages: Sequence[RecipeStage]
    manifest: RecipeManifest
    standing: Mapping[str, StageRow]
    outputs: Mapping[str, str]
    later: Mapping[str, Sequence[str]]


def _plan(
    name: str | None,
    directory: Path,
    overrides: Sequence[str],
    until: str | None,
    resume: Path | None,
    scale: str | None,
) -> _Plan:
    """Read and check a recipe, cheap checks first, without writing files."""
    recipe = open_recipe(name, resume, scale, overrides)
    stages = recipe.until(until)
    check_folder(resume or directory, "--resume" if resume else "--directory")
    if resume and not any((resume / one).exists() for one in (FILE, MANIFEST)):
        found = f"neither {FILE} nor {MANIFEST} in it"
        raise RunError(message(str(resume), found, "the directory of a recipe's run"))
    manifest = RecipeManifest.read(resume) if resume else RecipeManifest(directory / recipe.name)
    manifest.describe(recipe)
    standing = find_standing(stages, manifest)
    outputs = planned_outputs(stages, manifest, standing)
    check_settings(stages, outputs)
    later = check_rows([one for one in stages if one.name not in standing], outputs, standing)
    return _Plan(recipe, stages, manifest, standing, outputs, later)


def find_standing(stages: Sequence[RecipeStage], manifest: RecipeManifest) -> dict[str, StageRow]:
    """Return the manifest rows of finished stages whose keys and inputs are unchanged."""
    found: dict[str, StageRow] = {}
    for stage in stages:
        # A stage is outdated if an earlier stage, whose output the stage reads, must run again.
        if not {*stage.uses} <= found.keys():
            continue
        now = row_of(stage, found, "")
        before = manifest.rows.get(stage.name)
        # A stage that only names an existing model needs no run, so it is always finished.
        if now.kind == "model":
            found[stage.name] = replace(now, output=stage.tree["model"], ended="finished")
        elif before and _is_done(before, now) and manifest.has(before):
            found[stage.name] = before
    return found


def _is_done(before: StageRow, now: StageRow) -> bool:
    """Whether the stage's earlier output is valid for its current settings and inputs."""
    return before.finished and before.kind == now.kind and before.key == now.key


def planned_outputs(
    stages: Sequence[RecipeStage], manifest: RecipeManifest, standing: Mapping[str, StageRow]
) -> dict[str, str]:
    """Return the existing or future output of each stage, by stage name."""
    rows = [
        standing.get(stage.name)
        or StageRow(stage.name, kind_of_row(stage), "", {}, output_of(stage))
        for stage in stages
    ]
    return {row.stage: manifest.output(row) for row in rows}


def row_of(stage: RecipeStage, rows: Mapping[str, StageRow], output: str) -> StageRow:
    """Return a stage's manifest row before the stage runs, with hashes of settings and inputs."""
    return StageRow(
        stage.name, kind_of_row(stage), settings_of(stage), inputs_of(stage, rows), output
    )


def kind_of_row(stage: RecipeStage) -> str:
    """Return the ``kind`` of a stage's manifest row."""
    if stage.kind == "data":
        return stage.tree["data"]
    if stage.kind == "model":
        return TINY if stage.tree["model"] == TINY else "model"
    return next((name for name in STAGES if name in stage.tree), "training")


def output_of(stage: RecipeStage, folder: str = "") -> str:
    """Return the path of a stage's output in the recipe's directory."""
    folder = folder or stage.name
    if stage.kind != "data":
        return folder
    return f"{folder}/{rows_name(stage.tree.get('output', 'jsonl'))}"


def _run_stages(plan: _Plan, accept: bool, quiet: bool, say: Say) -> str:
    stages, manifest, standing = plan.stages, plan.manifest, plan.standing
    rows: dict[str, StageRow] = {}
    for number, stage in enumerate(stages, 1):
        head = f"{number}/{len(stages)}  "
        if stage.name in standing:
            if standing[stage.name].kind != "model":
                say(f"{head}{stage.name}: done, and its inputs have not changed")
            rows[stage.name] = standing[stage.name]
            manifest.put(rows[stage.name])
            continue
        row, before = row_of(stage, rows, ""), manifest.rows.get(stage.name)
        if before and not before.finished and (before.kind, before.key) == (row.kind, row.key):
            # Settings and inputs are unchanged, so the unfinished stage continues in its folder.
            row = replace(before, ended=None)
        else:
            # A changed stage gets a new folder, so that earlier results are never overwritten.
            row = replace(row, output=output_of(stage, manifest.free_name(stage.name)))
        summary = f"{stage.name}: {row.kind} from {', '.join(stage.uses) or 'nothing'}"
        say(f"{head}{stage.about or summary}")
        # The row is written before the stage runs, so that a resume after a kill finds its folder.
        manifest.put(row)
        rows[stage.name] = row = _run_stage(stage, row, manifest, rows, accept, quiet)
        if not row.finished:
            return f"{row.ended} in stage {row.stage}"
    return "finished"


def _run_stage(
    stage: RecipeStage,
    row: StageRow,
    manifest: RecipeManifest,
    rows: Mapping[str, StageRow],
    accept: bool,
    quiet: bool,
) -> StageRow:
    """Run or resume one stage, and return its final manifest row.

    accept: resume although the stage's reward has changed.
    """
    outputs = {name: manifest.output(one) for name, one in rows.items()}
    started, ended = time.perf_counter(), "failed"
    try:
        with naming(stage):
            ended = _RUNNERS[stage.kind](stage, row, manifest, outputs, accept, quiet)
    except AssayError as error:
        stays = (
            "finished stages are kept; fix the cause, then:"
            f" assay recipe run --resume {manifest.folder}"
        )
        # The error is changed in place, because its type determines the exit code.
        error.args = (f"{error}; {stays}", *error.args[1:])
        raise
    finally:
        seconds = row.seconds + time.perf_counter() - started
        row = replace(row, seconds=round(seconds, 3), ended=ended)
        manifest.put(row)
    return row


def _make_model(
    stage: RecipeStage,
    row: StageRow,
    manifest: RecipeManifest,
    outputs: Mapping[str, str],
    accept: bool,
    quiet: bool,
) -> str:
    make_tiny(stage, manifest.clear(row))
    return "finished"


def _make_rows(
    stage: RecipeStage,
    row: StageRow,
    manifest: RecipeManifest,
    outputs: Mapping[str, str],
    accept: bool,
    quiet: bool,
) -> str:
    run_stage(row.kind, settings_of_data(stage, outputs), manifest.clear(row))
    return "finished"


def _train(
    stage: RecipeStage,
    row: StageRow,
    manifest: RecipeManifest,
    outputs: Mapping[str, str],
    accept: bool,
    quiet: bool,
) -> str:
    from assay.session.stage import Stage
    from assay.training import api

    folder = manifest.place(row)
    if (folder / "config.toml").is_file():
        run = api.train(resume=folder, accept_changed_verifiers=accept, quiet=quiet)
        return run.ended
    # The directory has no configuration if the stage was killed before its run began.
    manifest.clear(row)
    run = {"directory": str(manifest.folder.absolute()), "name": folder.name}
    config = settings_of_training(stage, outputs, run)
    return api.run_stage(Stage(config, quiet=quiet)).ended


_RUNNERS = {"model": _make_model, "data": _make_rows, "training": _train}
