"""Write docs/configuration.md from the configuration models: ``python tools/config_reference.py``.

The docstrings of `assay.config` are the only source; a test says when the page is out of date.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from pydantic import BaseModel

from assay.config import TrainConfig, field_help, section_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

<!-- Written by tools/config_reference.py from assay/config: change the docstrings there. -->

One TOML file describes one run; `assay train run.toml` performs it. Every key has a default except
`model.path` and the sources of its stage. A small file is enough:

```toml
[model]
path = "models/SmolLM2-135M-Instruct"

[data]
train = ["problems.jsonl"]
heldout = ["heldout.jsonl"]

[rl]
steps = 200
```

- A run has exactly one stage: `[rl]`, `[sft]`, `[preference]` or `[reward_model]`.
- `--set section.key=value` overrides a key for one run. The value is TOML; a key that holds text
  takes it as it stands (`--set model.path=out/base`); an empty value gives the key its default
  again (`--set sampling.top_k=`).
- A default of None is the behavior that the description states, and is written by leaving the key
  out.
- An unknown key, or a value of another type, is an error that names the line, what was found, what
  is accepted, and the remedy. Nothing is ignored.
- The run directory's `config.toml` holds every key as the run used it.
"""


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for section, rows in groupby(field_help(), key=lambda row: row[0].rpartition(".")[0]):
        parts.append(f"## [{section}]\n\n{_section_text(section)}\n")
        parts.append("| key | accepts | default | what it does |\n|---|---|---|---|")
        for key, kind, default, description in rows:
            shown = default if default in ("required", "None") else f"`{default}`"
            cells = (f"`{key.rpartition('.')[2]}`", kind, shown, description)
            parts.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def _section_text(section: str) -> str:
    model: type[BaseModel] = TrainConfig
    is_optional = False
    for name in section.split("."):
        field = model.model_fields[name]
        is_optional = field.default is None and not field.is_required()
        model = section_of(field.annotation) or model
    lines = (model.__doc__ or "").splitlines()
    text = "\n".join(line.strip() for line in lines).replace("``", "`")
    return f"{text.strip()} Absent unless it is written." if is_optional else text.strip()


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ").strip()


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE}")
