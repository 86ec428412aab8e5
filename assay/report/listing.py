"""``assay run list``: list the runs below a folder.

Only the listed fields are read, so listing a thousand runs takes about a second. Configurations are
not validated, so that runs of other versions of Assay are listed too.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from assay.config import STAGES
from assay.errors import AssayError, RunError, cause, did_you_mean, message
from assay.host.files import plain
from assay.host.records import as_object, check_measures, read_step_rows
from assay.host.terminal import aligned, lined
from assay.run.environment import flat
from assay.run.evaluations import accuracy_of, best_step, of_deciding_kind
from assay.run.progress import format_seconds

_TAIL = 16_384
"""Number of bytes to read at the end of a journal. They contain its last rows."""
STATES = ("running", "finished", "stopped", "paused", "interrupted", "failed", "killed")
STATES += ("unreadable",)
# Unvalidated configurations may have wrong types or huge numbers, which raise these exceptions.
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
_DAMAGE += (RecursionError,)
_SHOWN = ("name", "state", "steps", "stage", "start", "best held-out", "cost")


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run in the list.

    state: one of `STATES`. why: reason of the run's end. step, of_steps: finished and planned
    steps; of_steps is None if unknown. algorithm: algorithm of [rl], or method of [preference].
    start: time of creation. best, best_step: best held-out accuracy and its step. seconds: wall
    time over all starts. money: cost of these seconds at guard.price_per_hour.
    """

    path: str
    name: str
    state: str
    why: str = ""
    step: int = 0
    of_steps: int | None = None
    stage: str = ""
    algorithm: str = ""
    start: str = ""
    best: float | None = None
    best_step: int | None = None
    seconds: float = 0.0
    money: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def cells(self) -> tuple[str, ...]:
        """Return the run as the cells of a table row, in the order of `_SHOWN`."""
        done = str(self.step) if self.of_steps is None else f"{self.step}/{self.of_steps}"
        best = "" if self.best is None else f"{self.best:.1%} at {self.best_step}"
        cost = format_seconds(self.seconds) + (f", {self.money:.2f}" if self.money else "")
        kind = " ".join(filter(None, [self.stage, self.algorithm]))
        start = self.start[:16].replace("T", " ")
        return self.name, self.state, done, kind, start, best, cost if self.seconds else ""

    def matches(self, asked: str) -> bool:
        """Whether a filter matches the run. asked: a word, or ``key=value``."""
        key, is_pair, value = asked.partition("=")
        if is_pair:
            own = {name: getattr(self, name) for name in ("name", "state", "stage", "algorithm")}
            found = {**self.settings, **own}.get(key)
            return found is not None and _same(found, value)
        words = [self.name, self.state, *(f"{name} {each}" for name, each in self.settings.items())]
        return any(asked.lower() in word.lower() for word in words)


@dataclass(frozen=True)
class Listing:
    """Runs that match all filters, newest first.

    of: number of runs before filtering. where: the searched folder.
    """

    runs: Sequence[ListedRun]
    of: int
    where: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return plain({"runs": [asdict(one) for one in self.runs], "of": self.of})

    def __str__(self) -> str:
        rows = [_SHOWN, *(one.cells() for one in self.runs)]
        return lined([*aligned(rows), f"({len(self.runs)} of {self.of} runs in {self.where})"])


def list_runs(folder: Path | str = "runs", asked: Sequence[str] = ()) -> Listing:
    """List the runs below a folder that match all filters, newest first.

    asked: filters. A word matches a run whose name or configuration contains the word.
    ``key=value`` matches a setting, such as ``rl.steps=60``, or ``name``, ``state``, ``stage`` or
    ``algorithm``. Raises RunError for a missing folder, a key that no run has, an unknown state,
    and a word that is the path of a folder.
    """
    top = Path(folder).expanduser()
    runs: list[ListedRun] = []
    if top.is_dir():
        runs = sorted(map(read_listed, run_folders(top)), key=lambda one: one.start, reverse=True)
    for one in asked:
        _check_asked(one, runs)
    if not top.is_dir():
        remedy = "name yours with --directory, or train a run first"
        raise RunError(message(f"assay run list, {top}", "no folder", "a folder of runs", remedy))
    if (top / "config.toml").is_file():
        found, remedy = f"the run {top}", f"name its folder: --directory {top.parent}"
        raise RunError(message("assay run list --directory", found, "a folder of runs", remedy))
    found = [one for one in runs if all(map(one.matches, asked))]
    return Listing(found, len(runs), str(top))


def _check_asked(asked: str, runs: Sequence[ListedRun]) -> None:
    """Raise RunError if a filter cannot match any run."""
    # A mistyped key would list no runs, which looks like an empty folder.
    key, is_pair, value = asked.partition("=")
    known = {"name", "state", "stage", "algorithm", *(key for one in runs for key in one.settings)}
    if is_pair and runs and key not in known:
        accepted = "a key of a run's configuration, as rl.steps=60"
        meant = did_you_mean(key, sorted(known))
        raise RunError(message("assay run list", repr(asked), accepted, meant))
    if key == "state" and is_pair and value.lower() not in STATES:
        accepted = f"one of {', '.join(STATES)}"
        meant = did_you_mean(value.lower(), STATES)
        raise RunError(message("assay run list state", repr(value), accepted, meant))
    folder = Path(asked).expanduser()
    if not is_pair and folder.is_dir() and not any(one.matches(asked) for one in runs):
        accepted = "a word of a run's name or settings, or key=value"
        is_run = (folder / "config.toml").is_file()
        remedy = f"for the runs of a folder: --directory {folder.parent if is_run else folder}"
        raise RunError(message("assay run list", f"the folder {asked}", accepted, remedy))


def run_folders(top: Path, seen: set[str] | None = None, is_linked: bool = False) -> Iterator[Path]:
    """Yield the run directories below a folder. Folders inside of runs are not searched.

    seen: real paths of the visited folders. is_linked: whether ``top`` is a symbolic link.
    """
    # Symbolic links may form cycles, and a folder may be reachable under several names.
    seen = set() if seen is None else seen
    seen.add(os.path.realpath(top))
    with os.scandir(top) as entries:
        folders = sorted(entry.path for entry in entries if entry.is_dir())
    for path in folders:
        if os.path.isfile(os.path.join(path, "config.toml")):
            yield Path(path)
        elif os.path.realpath(path) not in seen and not is_linked:
            # Behind a link, only one level is searched, because a link may point to the whole disk.
            with suppress(OSError):
                yield from run_folders(Path(path), seen, os.path.islink(path))


def read_listed(folder: Path) -> ListedRun:
    """Read the listed fields of a run. An unreadable run has the state ``unreadable``."""
    # One damaged run must not hide all others.
    try:
        return _listed(folder)
    except AssayError as error:
        return ListedRun(str(folder), folder.name, "unreadable", str(error))
    except _DAMAGE as error:
        return ListedRun(str(folder), folder.name, "unreadable", cause(error))


def _listed(folder: Path) -> ListedRun:
    tree = tomllib.loads((folder / "config.toml").read_text("utf-8"))
    events = [*_rows(_ends(folder / "events.jsonl"))]
    # Journals of long runs have many megabytes, so only their last rows are read.
    last = next(_rows(reversed(_ends(folder / "metrics.jsonl"))), {"step": 0})
    check_measures(last, str(folder / "metrics.jsonl"))
    evaluations = [*read_step_rows(folder / "evaluations.jsonl")]
    best = best_step(evaluations)
    stage = next((name for name in STAGES if name in tree), "")
    state, why = _state(folder, events)
    scores = [accuracy_of(row) for row in of_deciding_kind(evaluations) if row["step"] == best]
    seconds = float(last.get("time/elapsed") or 0.0)
    price = (tree.get("guard") or {}).get("price_per_hour")
    methods = {"rl": "algorithm", "preference": "preference"}
    method: Mapping[str, Any] = tree.get(methods.get(stage, "")) or {}
    return ListedRun(
        path=str(folder),
        name=folder.name,
        state=state,
        why=why,
        step=int(last.get("step") or 0),
        of_steps=_num_steps(events) or (tree.get(stage) or {}).get("steps"),
        stage=stage,
        algorithm=str(method.get("name") or method.get("method") or ""),
        start=str(events[0].get("time") or "") if events else "",
        best=scores[0] if scores else None,
        best_step=best,
        seconds=seconds,
        money=seconds / 3600 * price if price else None,
        settings=dict(flat(tree)),
    )


def _num_steps(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the planned number of steps at the newest start; None if it is not recorded."""
    said = (one.get("steps") for one in reversed(events) if one.get("kind") in _STARTS)
    return next((int(steps) for steps in said if isinstance(steps, int)), None)


_STARTS = ("created", "resumed")
_ENDS = {"interrupted": "interrupted", "finished early": "finished", "finished": "finished"}


def _state(folder: Path, events: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return (state, reason of the end) of a run."""
    kinds = ("created", "resumed", "ended")
    newest = next((one for one in reversed(events) if one.get("kind") in kinds), {})
    # A killed process records no end, but the operating system releases its lock.
    if newest.get("kind") != "ended":
        return ("running" if is_locked(folder) else "killed"), ""
    why = str(newest.get("reason"))
    if why.startswith("RunStopped"):
        return "stopped", why
    # The reason of a failed run begins with the name of the exception, as "ValueError: ...".
    if ":" in why and why.split(":")[0].isidentifier():
        return "failed", why
    return _ENDS.get(why, "paused"), why


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to the run."""
    # A shared lock, so that two listings at the same time do not see each other as writers.
    try:
        with open(folder / ".lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _ends(path: Path) -> list[bytes]:
    """Read the first line and the last lines of a journal.

    The second element may be an incomplete line. A missing journal has no lines.
    """
    # Opening a named pipe would block forever.
    if path.exists() and not path.is_file():
        raise RunError(message(str(path), "no regular file", "a file", "restore it"))
    with suppress(FileNotFoundError), open(path, "rb") as file:
        first = file.readline()
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _TAIL))
        return [first, *file.read().splitlines()]
    return []


def _rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if (row := as_object(line)) is not None:
            yield row


def _same(found: Any, text: str) -> bool:
    """Whether a value equals a text, ignoring case.

    A list matches if one of its elements equals the text. A path matches if its last component
    equals the text.
    """
    with suppress(ValueError):
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(text) == float(found)
    if isinstance(found, list) and any(_same(each, text) for each in cast("list[Any]", found)):
        return True
    words = found if isinstance(found, str) else json.dumps(found, default=str).strip('"')
    return text.lower() in (words.lower(), os.path.basename(words).lower())
