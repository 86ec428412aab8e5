"""Environment of a run (versions, hardware, threads, git), and comparisons of two environments."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.config import TrainConfig, read_toml
from assay.errors import RunError, message
from assay.host.files import read_facts, write_atomic
from assay.host.machine import c_compiler, git_state, hardware

_PACKAGES = [
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "math-verify",
    "sympy",
    "reasoning-gym",
    "peft",
]

_HARMLESS = (
    *("run", "checkpoint", "evaluation", "verification"),
    *("guard", "log", "alerts", "scale", "audit"),
)
"""Configuration sections whose changes do not affect sampling, verdicts or learning."""
_HARMFUL = (
    "verification.options",
    "verification.schedule",
    "scale.steps_ahead",
    "scale.learner_ranks",
    "scale.shard",
)
"""Keys of `_HARMLESS` sections whose changes affect sampling, verdicts or learning."""

SOURCES = "verifiers"
"""Folder of a run with the source code of user verifiers, by hash."""

AUDIT_ONLY = "audit_only"
"""Key in the description of a verifier that no reward uses, only ``audit.second``."""

_TELLING = ("version", "hash", "options", "checkpoint")


def collect_environment(config: TrainConfig) -> dict[str, Any]:
    """Collect versions, hardware, thread counts and git state of this process; None marks unknown
    values.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "seed": config.run.seed,
        "reward": reward_of(config),
        "threads": _threads(config),
        "versions": _versions(),
        "platform": platform.platform(),
        "hardware": hardware(),
        "git": git_state(Path.cwd()),
    }


def read_environment(folder: Path) -> dict[str, Any] | None:
    """Read a run's ``environment.json``; None if the file does not exist. Raises RunError."""
    path = folder / "environment.json"
    facts = read_facts(path)
    if facts is None:
        return None
    tables = {
        key: facts.get(key) or {} for key in ("versions", "hardware", "git", "reward", "verifiers")
    }
    if isinstance(tables["verifiers"], dict):
        tables |= {f"verifiers.{name}": each for name, each in tables["verifiers"].items()}
    for key, table in tables.items():
        if not isinstance(table, dict):
            found = f"{key}: {table!r:.60}"
            raise RunError(message(str(path), found, "a table", "restore the file"))
    return facts


def find_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe differences between two environments that can change a result, one line per
    difference.
    """
    then = comparable_facts(before)
    # An older version of Assay may not have recorded a key, so missing keys are not compared.
    return _differences(
        then, {key: value for key, value in comparable_facts(now).items() if key in then}
    )


def comparable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries of an environment that can change a result, as one flat mapping."""
    found = {key: facts.get(key) for key in ("threads", "platform")}
    for key in ("versions", "hardware"):
        found |= facts.get(key) or {}
    return {**found, "git commit": (facts.get("git") or {}).get("commit")}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    return [
        f"{prefix}{key}: {before.get(key)} before, {now.get(key)} now"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def find_changed_verifiers(
    before: Mapping[str, Any], now: Mapping[str, Any], *, audit_only: bool = False
) -> list[str]:
    """Describe each verifier that two environments record differently, one line per verifier.

    Compared are the version, the content hash, and the digests of the options and of the
    checkpoint. A verifier that only one of the two environments lists is not reported. audit_only:
    whether to compare only the verifiers that ``audit.second`` alone uses, instead of all others.
    """
    changed: list[str] = []
    for name in sorted({*before} & {*now}):
        old, new = dict(before[name]), dict(now[name])
        if new.get(AUDIT_ONLY, False) != audit_only:
            continue
        if any(old.get(key) != new.get(key) for key in _TELLING):
            changed.append(f"{name}: {verifier_text(old)} before, {verifier_text(new)} now")
    return changed


def find_config_changes(before: TrainConfig, now: TrainConfig) -> list[str]:
    """Describe each changed configuration key, as ``rl.steps: 100 before, 200 now``."""
    old_tree, new_tree = before.model_dump(mode="json"), now.model_dump(mode="json")
    changes: list[str] = []
    for section in new_tree:
        old, new = old_tree[section] or {}, new_tree[section] or {}
        changes += sorted(_differences(old, new, f"{section}."))
    return changes


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """Flatten a configuration to a mapping with dotted keys, without None values."""
    return dict(flat(config.model_dump(mode="json", exclude_none=True)))


def find_missing_settings(path: Path, config: TrainConfig) -> list[str]:
    """Return the configuration keys that are missing in the file of a run.

    Assay writes every key to the configuration file of a run, so a missing key means a truncated
    file.
    """
    # A file that is truncated at the end of a line is valid TOML, so missing keys are an error.
    # Without this check, every lost key would silently get its default value.
    written = dict(flat(read_toml(path)[0]))
    return [key for key in settings_of(config) if key not in written]


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a nested table with its dotted key."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def is_harmful(change: str) -> bool:
    """Whether a change that `find_config_changes` describes affects sampling, verdicts or
    learning."""
    return change.partition(".")[0] not in _HARMLESS or change.startswith(_HARMFUL)


def reward_of(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration keys that define the reward, without verifier options."""
    # `find_changed_verifiers` compares the options of verifiers by their digest.
    tree = config.model_dump(mode="json")
    found = {f"data.{key}": tree["data"][key] for key in ("verifier", "verifier_by_tag")}
    found["verification.schedule"] = tree["verification"]["schedule"]
    if config.preference is not None:
        found["preference.judge"] = config.preference.judge
    return found


def find_changed_reward(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the changed keys of the reward (`reward_of`), one line per key."""
    # Older Assay versions record fewer keys: a key of only one configuration counts as equal.
    return _differences(
        before,
        {key: now[key] for key in now if key in before}
        | {key: before[key] for key in before if key not in now},
    )


def hashes_of(verifiers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the content hash of each verifier by its name and version, such as ``math@4``."""
    return {f"{name}@{one.get('version')}": str(one.get("hash")) for name, one in verifiers.items()}


def keep_sources(run: Path, verifiers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Save the source code of the user's verifiers in the run's folder. Return the descriptions
    without source.
    """
    # A replay needs the old source code to show how a verifier changed.
    for facts in verifiers.values():
        for module, text in (facts.get("source") or {}).items():
            names = re.sub(r"\W", "", str(facts["hash"])), re.sub(r"[^\w.]", "", module)
            path = run / SOURCES / names[0] / f"{names[1]}.py"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, text.encode("utf-8"))
    return {
        name: {key: facts[key] for key in facts if key != "source"}
        for name, facts in verifiers.items()
    }


def saved_source(run: Path, hash: str) -> dict[str, str]:
    """Return the saved source code of the user's verifiers, by module name."""
    files = sorted((run / SOURCES / re.sub(r"\W", "", hash)).glob("*.py"))
    return {file.stem: file.read_text("utf-8") for file in files}


def verifier_text(facts: Mapping[str, Any]) -> str:
    """Describe a verifier's version and digests, as ``version 2 (0f3a..., options 9b1c...)``."""
    rest = (f"{key} {str(facts[key])[:12]}" for key in _TELLING[2:] if facts.get(key))
    return f"version {facts.get('version')} ({', '.join([str(facts.get('hash'))[:12], *rest])})"


def _threads(config: TrainConfig) -> int | None:
    # Importing torch takes seconds, which commands that only read runs must not spend.
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else config.run.threads or os.cpu_count()


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions["assay"] = sys.modules["assay"].__version__
    for package in _PACKAGES:
        versions[package] = None
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    compiler = c_compiler()
    return versions | {"cc": compiler and compiler[1]}
