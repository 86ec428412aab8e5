"""Find installed third-party packages that programs may import."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from assay.errors import VerifierError, message, nearest

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
MAX_PACKAGES = 32
ACCEPTED = "names of installed packages, such as numpy"


@dataclass(frozen=True)
class Packages:
    """Third-party packages for a sandbox, with the packages that they depend on.

    names: import names that programs may use, dependencies included.
    listed: import names of the packages that the user listed.
    versions: (distribution, version) of each package, sorted.
    entries: files and folders to make visible, as absolute paths.
    missing: packages that are listed but not installed.
    """

    names: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    entries: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


NONE = Packages()


@lru_cache(maxsize=64)
def find_packages(names: tuple[str, ...]) -> Packages:
    """Return the named packages and their dependencies.

    names: names of distributions (``scikit-learn``) or of imports (``sklearn``).

    A package without a list of its files, such as one in development mode, counts as missing.
    """
    if not names:
        return NONE
    listed: list[str] = []
    missing: list[str] = []
    chosen: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        found = _distribution(name)
        if found is None or not _entries(found):
            missing.append(name)
            continue
        modules = _import_names(found)
        listed += [name] if name in modules else modules
        _add(found, chosen)
    entries = {entry for one in chosen.values() for entry in _entries(one)}
    return Packages(
        names=tuple(sorted({name for one in chosen.values() for name in _import_names(one)})),
        listed=tuple(dict.fromkeys(listed)),
        versions=tuple(sorted((key, str(one.version)) for key, one in chosen.items())),
        entries=tuple(sorted(entries)),
        missing=tuple(missing),
    )


def are_packages(value: Any) -> bool:
    """Return whether a value is a list of at most `MAX_PACKAGES` package names."""
    return (
        isinstance(value, (list, tuple))
        and len(value) <= MAX_PACKAGES  # pyright: ignore[reportUnknownArgumentType]
        and all(isinstance(each, str) and NAME.fullmatch(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    )


def check_packages(names: Sequence[str], where: str) -> None:
    """Raise VerifierError for a package name that is probably a mistake.

    A package that is not installed is accepted, because rows that do not need it can be judged.
    """
    for name in names:
        if name in sys.stdlib_module_names:
            remedy = "remove it: programs always have the standard library"
            raise VerifierError(message(where, name, ACCEPTED, remedy))
        if _key(name) in ("assay", "assay-rl"):
            remedy = "remove it: programs must not have the code that judges them"
            raise VerifierError(message(where, name, ACCEPTED, remedy))
    for name in find_packages(tuple(names)).missing:
        if near := nearest(_key(name), _installed(), 0.75):
            raise VerifierError(message(where, name, ACCEPTED, f"did you mean {near[0]}?"))


def not_installed(names: Iterable[str]) -> str:
    """Return the reason why rows that need these packages are not judged."""
    listed = ", ".join(sorted(names))
    return f"{listed}: not installed on this machine; run: pip install {listed}"


def _add(distribution: Any, chosen: dict[str, Any]) -> None:
    """Add a distribution and the installed packages that it requires."""
    key = _key(distribution.metadata["Name"])
    if key in chosen:
        return
    chosen[key] = distribution
    for line in distribution.requires or ():
        # Optional extras of a distribution are skipped, because they are not part of the package.
        # Environment markers need no check, because a requirement of another platform is not
        # installed.
        name, _, marker = line.partition(";")
        match = NAME.match(name.strip())
        needed = None if match is None or "extra" in marker else _distribution(match[0])
        if needed is not None:
            _add(needed, chosen)


def _distribution(name: str) -> Any:
    # Importing importlib.metadata takes a sixth of a worker's start-up time, so import it late.
    from importlib import metadata

    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pass
    owners = metadata.packages_distributions().get(name)
    return metadata.distribution(owners[0]) if owners else None


def _entries(distribution: Any) -> list[str]:
    """Return the files and folders of a distribution at the top of site-packages."""
    parts = {file.parts[0] for file in distribution.files or () if not file.is_absolute()}
    # Scripts in ``..`` cannot be executed, and .pth files run only when an interpreter starts.
    parts = {part for part in parts if part not in ("..", "__pycache__")}
    kept = sorted(part for part in parts if not part.endswith((".pth", ".egg-link")))
    paths = [distribution.locate_file(part) for part in kept]
    info = (".dist-info", ".egg-info")
    # An editable installation lists only metadata, because the package's code is in another folder.
    if all(part.endswith(info) for part in kept):
        return []
    return [str(path.resolve()) for path in paths if path.exists()]


def _import_names(distribution: Any) -> list[str]:
    names: set[str] = set()
    for entry in _entries(distribution):
        stem = entry.rpartition("/")[2]
        if not stem.endswith((".dist-info", ".egg-info", ".libs")):
            names.add(stem.partition(".")[0])
    return sorted(name for name in names if name.isidentifier())


def _installed() -> list[str]:
    from importlib import metadata

    return [_key(each.metadata["Name"] or "") for each in metadata.distributions()]


def _key(name: str) -> str:
    """Return a normalized distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
