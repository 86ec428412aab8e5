"""Datasets of the Hugging Face hub, through the extra ``hub``; memory-mapped by that library."""

from __future__ import annotations

from typing import Any

from assay.data.source import Source, split_settings
from assay.errors import DataError, MissingExtra, cause, message

_FORM = "hf:OWNER/NAME[/CONFIG][?split=train&revision=main]"


def open_hub(text: str) -> Source:
    """Load ``hf:OWNER/NAME[/CONFIG][?split=train&revision=...]``; HF_HUB_OFFLINE is respected.

    Without a configuration it is the dataset's default one, else its only one, else ``main``
    (so that ``hf:openai/gsm8k`` means what people mean by it).
    """
    name, settings = split_settings(text.removeprefix("hf:"))
    split = settings.pop("split", "train")
    revision = settings.pop("revision", None)
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
    except DataError:
        raise
    except Exception as error:  # of `datasets`, where each cause has its own type
        raise DataError(f"{text}: cannot be loaded ({cause(error)}); accepted: {_FORM}") from error
    return Source(text, rows)


def _choose_config(datasets: Any, path: str, revision: str | None) -> str | None:
    names = datasets.get_dataset_config_names(path, revision=revision)
    if "default" in names or not names:
        return None
    if len(names) == 1:
        return names[0]
    if "main" in names:
        return "main"
    accepted = f"one of hf:{path}/" + f", hf:{path}/".join(names)
    raise DataError(message(f"hf:{path}", "no configuration named", accepted))
