"""Names of checkpoints: ``RUN``, ``RUN@last``, ``RUN@best``, ``RUN@120``, or a folder's path."""

from __future__ import annotations

from pathlib import Path

from assay.config import CheckpointConfig
from assay.config.world import RunConfig
from assay.errors import RunError, message, nearest
from assay.host.files import read_json
from assay.host.records import read_step_rows
from assay.run.checkpoints import MANIFEST, Checkpoints, find_damage, step_of
from assay.run.evaluations import best_step
from assay.run.rollback import newest_stop


def find_checkpoint(name: str) -> Path | None:
    """Return the folder of a named checkpoint; None if the text is not a name of a checkpoint.

    ``RUN@120`` is the checkpoint of step 120, ``RUN@best`` the best on held-out problems, and
    ``RUN@last`` the newest. Plain ``RUN`` also means the newest checkpoint, but raises RunError if
    the guard stopped the run. Every file is checked against the manifest, which takes a second or
    two per GiB. Raises RunError for a damaged or missing checkpoint.
    """
    folder = Path(name).expanduser()
    if _is_checkpoint(folder):
        return _checked(folder)
    # A name may also refer to one component of a checkpoint, such as the critic.
    if folder.is_dir() and _is_checkpoint(folder.parent):
        return _checked(folder.parent) / folder.name
    run, which = folder, ""
    if not folder.exists() and "@" in name:
        place, _, which = name.rpartition("@")
        run = Path(place).expanduser()
        # ``RUN@$STEP`` with an unset shell variable must not silently mean the newest checkpoint.
        if not which and (run / "config.toml").is_file():
            accepted = f"{place}, {place}@best, {place}@last or {place}@STEP"
            raise RunError(message(name, "nothing after the @", accepted))
    if (run / "config.toml").is_file():
        return _checked(_choose(run, which))
    if which in ("best", "last") or which.isdecimal():
        raise RunError(f"{name}: found no run directory at {run}; check the path")
    return None


def run_of(checkpoint: Path) -> Path | None:
    """Return the run to which a checkpoint folder belongs; None for a folder outside of any run."""
    # The parent of a one-word path is the working directory, which may itself have a config.toml.
    if checkpoint.absolute().parent.name != "checkpoints":
        return None
    run = checkpoint.parent.parent
    return run if (run / "config.toml").is_file() else None


def check_place(name: str, where: str) -> None:
    """Raise RunError if a name can only be a path and this path does not exist.

    ``OWNER/NAME`` may also be a model on the Hugging Face Hub, unless ``OWNER`` is a folder of
    runs.
    """
    # Without this check, the hub would be asked for a mistyped path such as runs/nope.
    folder = Path(name).expanduser()
    # `find_checkpoint` reports errors in names such as ``RUN@best``.
    if folder.exists() or "@" in name:
        return
    runs = sorted(one.parent.name for one in folder.parent.glob("*/config.toml"))
    in_runs = bool(runs) or str(folder.parent) == RunConfig.model_fields["directory"].default
    of_runs = Path(RunConfig.model_fields["directory"].default) / name
    if "/" not in name and (of_runs / "config.toml").is_file():
        accepted = "a run's folder, a model's folder, a GGUF file or a hub name"
        raise RunError(message(where, "nothing there", accepted, f"did you mean {of_runs}?"))
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or folder.suffix == ".gguf"
    if is_path or ("/" in name and in_runs):
        accepted = "a run (RUN, RUN@best, RUN@120), a model's folder, a GGUF file or a hub name"
        near = nearest(folder.name, runs, 0.3, most=3) or runs[:3]
        remedy = f"runs in {folder.parent}: {', '.join(near)}" if runs else "check the path"
        raise RunError(message(where, "nothing there", accepted, remedy))


def _is_checkpoint(folder: Path) -> bool:
    checkpoints = folder.parent
    is_named_so = step_of(folder) is not None and checkpoints.name == "checkpoints"
    if is_named_so and folder.is_dir() and (checkpoints.parent / "config.toml").is_file():
        return True
    manifest = folder / MANIFEST
    # Other programs also write files named manifest.json, so the content decides.
    # An unreadable manifest may belong to a damaged checkpoint, so it counts as one.
    return manifest.is_file() and "files" in (read_json(manifest) or ("files",))


def _checked(folder: Path) -> Path:
    wrong = find_damage(folder)
    if wrong is None:
        return folder
    others = [one for one in _choices(folder.parent.parent) if one[0] != step_of(folder)]
    remedy = f"name another: {_listed(others)}" if others else "restore it from a copy"
    raise RunError(
        f"{folder}: the checkpoint is damaged ({wrong}), so it is not used; {remedy}; to use its "
        f"weights unchecked, copy the folder out of the run, without its {MANIFEST}"
    )


def _choose(run: Path, which: str) -> Path:
    """Return the checkpoint folder for the part of a name after "@": empty, ``last``, ``best`` or a
    step.
    """
    checkpoints = _checkpoints(run)
    steps = checkpoints.steps()
    if not steps:
        raise RunError(f"{run}: the run has no checkpoint yet; resume it")
    wanted: int | None = steps[-1]
    problem = f"there is no {run}@{which}"
    if not which:
        problem = _guard_stop(run, steps[-1])
        wanted = None if problem else steps[-1]
    elif which == "best":
        wanted = _best(run)
        problem = "no evaluation on held-out problems has chosen a best step"
        if wanted is not None:
            problem = f"the best step on held-out problems, {wanted}, has no checkpoint any more"
    elif which != "last":
        wanted = int(which) if which.isdecimal() else None
    if wanted not in steps:
        raise RunError(f"{run}: {problem}; accepted: {_listed(_choices(run))}")
    assert wanted is not None
    return checkpoints.path(wanted)


def _guard_stop(run: Path, newest: int) -> str:
    """Return the reason to refuse the plain name ``RUN``; "" unless the guard stopped the run."""
    # After a guard stop, the newest checkpoint has the policy that the guard rejected.
    stop = newest_stop(run)
    if stop is None or int(stop.get("step") or 0) < newest:
        return ""
    step, reason, well = (stop.get(key) for key in ("step", "reason", "well"))
    sound = "" if well is None else f"; the newest checkpoint before the finding is step {well}"
    return f"a guard stopped it at step {step} ({reason}), so say which checkpoint you mean{sound}"


def _choices(run: Path) -> list[tuple[int, str]]:
    """Return (step, text with all names) for each checkpoint of a run, newest first."""
    steps, best = _checkpoints(run).steps(), _best(run)
    found: list[tuple[int, str]] = []
    for step in reversed(steps):
        words = [*["last"] * (step == steps[-1]), *["best"] * (step == best)]
        called = f" (also @{' and @'.join(words)})" if words else ""
        found.append((step, f"{run}@{step}{called}"))
    return found


def _listed(choices: list[tuple[int, str]]) -> str:
    return ", ".join(words for _, words in choices)


def _checkpoints(run: Path) -> Checkpoints:
    return Checkpoints(run / "checkpoints", CheckpointConfig())


def _best(run: Path) -> int | None:
    return best_step([row for row in read_step_rows(run / "evaluations.jsonl") if "step" in row])
