"""Data sets of the Hugging Face hub as row sources (extra ``hub``). The library `datasets`
memory-maps the rows of a data set.
"""

from __future__ import annotations

from typing import Any

from assay.data.source import Source, split_settings
from assay.errors import DataError, MissingExtra, cause, message

_FORM = "hf:OWNER/NAME[/CONFIG][?split=train&revision=main&rename=COLUMN:KEY,COLUMN:KEY]"


def open_hub(text: str) -> Source:
    """Load ``hf:OWNER/NAME[/CONFIG][?split=train&revision=...]``; HF_HUB_OFFLINE is respected.

    The setting ``rename=input:prompt,target:answer`` renames columns to the keys of a problem.
    An address without CONFIG uses the configuration ``default``, or the only one, or ``main`` (as
    in ``hf:openai/gsm8k``).
    """
    name, settings = split_settings(text.removeprefix("hf:"))
    split = settings.pop("split", "train")
    revision = settings.pop("revision", None)
    names = _read_names(text, settings.pop("rename", None))
    parts = name.split("/")
    if settings or not 1 <= len(parts) <= 3 or not all(parts):
        found = f"setting {next(iter(settings))!r}" if settings else repr(name)
        raise DataError(message(text, found, _FORM))
    try:
        import datasets  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise MissingExtra.of("datasets", "hub", f"the source {text}") from error
    path = "/".join(parts[:2])
    try:
        config = parts[2] if len(parts) == 3 else _choose_config(datasets, path, revision)
        rows = datasets.load_dataset(path, config, split=split, revision=revision)
        rows = rows.rename_columns(names) if names else rows
    except DataError:
        raise
    except Exception as error:  # `datasets` raises a different type of exception for each cause
        advice = hub_advice(error) or f"accepted: {_FORM}"
        raise DataError(f"{text}: cannot be loaded ({cause(error)}); {advice}") from error
    return Source(text, rows)


def _read_names(text: str, renames: Any) -> dict[str, str]:
    """Parse the setting ``column:key,column:key`` to a dict {column: key}."""
    if renames is None:
        return {}
    pairs = [part.split(":") for part in str(renames).split(",")]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise DataError(message(f"{text} rename", repr(renames), "COLUMN:KEY,COLUMN:KEY"))
    return dict(pairs)


def _choose_config(datasets: Any, path: str, revision: str | None) -> str | None:
    # `load_dataset` fails for a dataset with several configurations and no default.
    names = datasets.get_dataset_config_names(path, revision=revision)
    if "default" in names or not names:
        return None
    if len(names) == 1:
        return names[0]
    if "main" in names:
        return "main"
    accepted = f"one of hf:{path}/" + f", hf:{path}/".join(names)
    raise DataError(message(f"hf:{path}", "no configuration named", accepted))


def hub_advice(error: BaseException | None) -> str:
    """Return a remedy for an error of the Hugging Face hub's client, or "" if no remedy is
    known."""
    # `datasets` wraps the exceptions of the hub client, so the chain of causes is searched.
    # Exception types are compared by name, because huggingface_hub is an optional package.
    while error is not None:
        kind = type(error).__name__
        status = getattr(getattr(error, "response", None), "status_code", None)
        if kind == "OfflineModeIsEnabled" or "offline mode" in str(error).lower():
            return "HF_HUB_OFFLINE is set: unset it"
        if kind == "GatedRepoError":
            return "accept its terms on its page, then run: hf auth login"
        if kind == "LocalTokenNotFoundError" or status == 401:
            return "check the name; private data sets need a token: hf auth login, or HF_TOKEN"
        if status == 403:
            return "the token may not do this: take one that may write, or another name"
        if isinstance(error, ConnectionError) or kind in ("ConnectError", "ConnectTimeout"):
            return "the hub cannot be reached: check the network, and HF_ENDPOINT"
        error = error.__cause__ or error.__context__
    return ""
