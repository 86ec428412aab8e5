"""Write docs/configuration.md and docs/data_stages.md: ``python tools/config_reference.py``.

The only source of the tables are the docstrings of `assay.config` and of the settings of data
transforms. A test fails if a page is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from assay.config import TrainConfig, field_help
from assay.curation.asking import AskingSettings
from assay.curation.base import STAGES, find_stage
from assay.curation.output import StageSettings
from assay.learn.algorithms import ALGORITHMS, PREFERENCES
from assay.validation import section_of, table_section_of, toml_words

TOOLS = Path(__file__).resolve().parent
PAGE = TOOLS.parent / "docs" / "configuration.md"
STAGES_PAGE = PAGE.with_name("data_stages.md")

HEAD = """\
# Configuration

<!-- Written by tools/config_reference.py from assay/config: change the docstrings there. -->

One TOML file describes one run, which `assay train run.toml` starts.
Every key has a default, except `model.path` and the data sources of the training stage.
A small file is enough:

```toml
[model]
path = "models/SmolLM2-135M-Instruct"

[data]
train = ["problems.jsonl"]
heldout = ["heldout.jsonl"]

[rl]
steps = 200
```

- A run has exactly one training stage: `[rl]`, `[sft]`, `[preference]`, `[reward_model]`,
  `[pretrain]` or `[distill]`.
- `--set section.key=value` overrides a key for one run.
  The value is written in TOML.
  For a key of type text, quotes may be omitted (`--set model.path=out/base`).
  An empty value restores the key's default (`--set sampling.top_k=`).
- The column *default* contains the value of a key that the file omits.
  If this column describes the default in words, omit the key, because TOML has no null value.
- An unknown key or a value of a wrong type is an error.
  The message contains the line, the value, the accepted values and a remedy.
- `config.toml` in the run directory contains every key with the value that the run used.
"""


METHODS: dict[str, Mapping[str, Any]] = {"algorithm": ALGORITHMS, "preference": PREFERENCES}
"""The methods whose fields are keys of a section."""


def reference() -> str:
    """Return the complete text of docs/configuration.md."""
    parts = [HEAD]
    for section, keys in groupby(field_help(), key=lambda entry: entry[0].rpartition(".")[0]):
        parts.append(f"## [{section}]\n\n{_section_text(section)}\n")
        methods = METHODS.get(section, {})
        heads = [
            "key",
            "accepts",
            "default",
            *["methods with another value"] * bool(methods),
            "description",
        ]
        parts.append(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        for key, kind, default, description in keys:
            name = key.rpartition(".")[2]
            default, others, text = _default(name, default, description, methods)
            cells = (f"`{name}`", kind, default, *[others] * bool(methods), text)
            parts.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def data_stages() -> str:
    """Return the complete text of docs/data_stages.md. Common keys of the transforms have one
    table."""
    parts = [(TOOLS / "data_stages_head.md").read_text(encoding="utf-8")]
    parts += _keys_table("Keys of every transform", StageSettings, None)
    parts += _keys_table("Keys of transforms that use a model", AskingSettings, StageSettings)
    for name in STAGES:
        settings = find_stage(name).settings
        asks = issubclass(settings, AskingSettings)
        parts += _keys_table(name, settings, AskingSettings if asks else StageSettings)
    return "\n".join(parts)


def _keys_table(title: str, settings: type[BaseModel], shared: type[BaseModel] | None) -> list[str]:
    """Return a table of keys, without the keys that equal those of ``shared``."""
    known = {entry[0]: entry for entry in field_help(shared)} if shared else {}
    parts = [f"## {title}\n\n{_words_of(settings)}\n"]
    if shared is AskingSettings:
        parts.append(
            "The transform also has the [keys of transforms that use a model]"
            "(#keys-of-transforms-that-use-a-model).\n"
        )
    parts.append("| key | accepts | default | description |\n|---|---|---|---|")
    for entry in field_help(settings):
        key, kind, default, description = entry
        if "." in key or known.get(key) == entry:  # of a section, which has a line of its own
            continue
        default, _, text = _default(key, default, description, {})
        cells = (f"`{key}`", kind, default, text)
        parts.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    for key, field in settings.model_fields.items():
        if section_of(field.annotation) is not None:
            link = f"configuration.md#{key}"
            text = f"{field.description} Its keys: [{key}]({link})"
            parts.append(f"| `{key}` | a section | as there | {_cell(text)} |")
    return [*parts, ""]


def _default(
    name: str, default: str, description: str, methods: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Return the text of a default, the methods with another default, and the remaining
    description.

    A sentence of a description that begins with "None:" states the meaning of None.
    """
    others = ""
    if methods and default == "None" and name in (of := _values(name, methods)):
        default, others = of[name], of["others"]
    meaning = re.search(r"\s*None:\s+(.*?)\.(?:\s|$)", f"{description}\n", re.DOTALL)
    if meaning:
        description = description.replace(meaning[0].rstrip(), "").strip()
    if default == "None":
        return (meaning[1] if meaning else "none"), others, description
    return (default if default == "required" else f"`{default}`"), others, description


def _values(name: str, methods: Mapping[str, Any]) -> dict[str, str]:
    """Return the value of a field for most methods, and the methods with another value."""
    kind = type(next(iter(methods.values())))
    known = {field.name: field for field in fields(kind)}
    if name == "name" or name not in known:
        return {}
    values = {row.name: getattr(row, name) for row in methods.values()}
    usual = known[name].default
    if usual is MISSING:
        usual = max(values.values(), key=list(values.values()).count)
    other = [(method, value) for method, value in values.items() if value != usual]
    entry = [
        f"{', '.join(f'`{m}`' for m, v in other if v == value)}: {_words(value)}"
        for value in dict.fromkeys(value for _, value in other)
    ]
    return {name: "None" if usual is None else toml_words(usual), "others": "; ".join(entry)}


def _words(value: Any) -> str:
    # the one field of a method that is None: a share of a limit that the method does not know
    return "a fifth of `sampling.max_tokens`" if value is None else f"`{toml_words(value)}`"


def _section_text(section: str) -> str:
    model: type[BaseModel] = TrainConfig
    is_optional = False
    for name in section.split("."):
        if name == "NAME":  # of a table of sections
            continue
        field = model.model_fields[name]
        is_optional = field.default is None and not field.is_required()
        model = section_of(field.annotation) or table_section_of(field.annotation) or model
    text = _words_of(model)
    return f"{text}\nThe section is absent unless the file contains it." if is_optional else text


def _words_of(model: type[BaseModel]) -> str:
    """Return the docstring of a section as Markdown, one sentence per line."""
    paragraphs = re.split(r"\n\s*\n", (model.__doc__ or "").replace("``", "`").strip())
    return "\n\n".join(re.sub(r"(?<=[.!?])\s+", "\n", " ".join(p.split())) for p in paragraphs)


def _cell(text: str) -> str:
    return re.sub("(?<!`)``(?!`)", "`", text).replace("|", "\\|").replace("\n", " ").strip()


if __name__ == "__main__":
    for page, text in ((PAGE, reference()), (STAGES_PAGE, data_stages())):
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page}")
