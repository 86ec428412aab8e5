"""Write docs/python.md from the public docstrings: ``python tools/python_reference.py``.

The only sources are `assay.__all__` and the docstrings. A test fails if the page is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import assay

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
HEAD = Path(__file__).resolve().parent / "python_head.md"

PARTS: dict[str, tuple[str, ...]] = {
    "Train and measure": ("train", "dry_run", "evaluate", "compare", "sample", "search", "export"),
    "Read a run": ("load_run", "LoadedRun", "Table"),
    "Verifiers": ("judge", "redteam", "reward", "RewardFunction"),
    "What the functions return": (
        "TrainResult",
        "DryRun",
        "Evaluation",
        "CompareResult",
        "SampleResult",
        "SearchResult",
        "SearchRow",
        "RedTeamResult",
    ),
    "For code of your own": (
        *("source", "load_config", "TrainConfig"),
        *("Problem", "Completion", "Verdict", "Group", "Prompt", "ThinkFormat"),
    ),
}
ALIASES = {
    "Configured": "TrainConfig | Mapping[str, Any] | Path | str",
    "Named": "str | Callable[..., Any]",
    "Options": "Mapping[str, Mapping[str, Any]]",
    "Rows": "Path | str | Iterable[Path | str | Mapping[str, Any]]",
    "Row": "Mapping[str, Any]",
    "Status": "Literal['passed', 'failed', 'not_judged']",
    "ThinkMode": "Literal['off', 'free', 'opened', 'empty']",
}
CALLED = {"LoadedRun": "run", "RewardFunction": "reward", "TrainResult": "result"}
HIDDEN_FIELDS = ("TrainConfig",)  # docs/configuration.md has them


def reference() -> str:
    """Return the complete text of the page."""
    lines = [HEAD.read_text(encoding="utf-8").rstrip()]
    for title, names in PARTS.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", *section(name, getattr(assay, name))]
    lines += ["", "## Errors", "", *errors()]
    return "\n".join(lines) + "\n"


def errors() -> Iterator[str]:
    """Yield the lines of the tree of exceptions."""
    from assay import errors as module

    yield from markdown(module.__doc__ or "").splitlines()


def section(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines about one public name."""
    yield f"### assay.{name}"
    yield ""
    if inspect.isclass(thing):
        fields = list(getattr(thing, "__dataclass_fields__", ()))
        yield markdown(inspect.getdoc(thing) or "", fields)
        if name not in HIDDEN_FIELDS:
            yield from members(name, thing)
        return
    yield signature(f"assay.{name}", thing)
    yield ""
    yield markdown(inspect.getdoc(thing) or "", list(inspect.signature(thing).parameters))


def members(name: str, thing: Any) -> Iterator[str]:
    """Yield the fields, properties and methods that a class defines itself."""
    if is_data(thing):
        fields = [one for one in dataclasses.fields(thing) if not one.name.startswith("_")]
        yield ""
        yield f"Fields: {', '.join(f'`{one.name}: {plain(one.type)}`' for one in fields)}."
    for key, value in vars(thing).items():
        if key.startswith("_") and key != "__call__":
            continue
        if isinstance(value, property):
            yield ""
            yield f"`{key}`: {markdown(inspect.getdoc(value) or '')}"
        elif isinstance(value, classmethod) or inspect.isfunction(value):
            function = value.__func__ if isinstance(value, classmethod) else value
            owner = (
                f"assay.{name}"
                if isinstance(value, classmethod)
                else CALLED.get(name, name.lower())
            )
            shown = owner if key == "__call__" else f"{owner}.{key}"
            yield ""
            yield signature(shown, function, skip_first=True)
            yield ""
            yield markdown(
                inspect.getdoc(function) or "", list(inspect.signature(function).parameters)
            )


def is_data(thing: Any) -> bool:
    """Whether a class is a dataclass."""
    return dataclasses.is_dataclass(thing)


def signature(shown: str, function: Any, skip_first: bool = False) -> str:
    """Return a signature as a code block. A long signature has one parameter per line."""
    found = inspect.signature(function)
    names = list(found.parameters.values())[1 if skip_first else 0 :]
    parts: list[str] = []
    for one in names:
        if one.kind is one.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        stars = {one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind, "")
        kind = "" if one.annotation is one.empty else f": {plain(one.annotation)}"
        default = "" if one.default is one.empty else f" = {default_of(one.default)}"
        parts.append(f"{stars}{one.name}{kind}{default}")
    ends = "" if found.return_annotation is found.empty else f" -> {plain(found.return_annotation)}"
    line = f"{shown}({', '.join(parts)}){ends}"
    if len(line) > 88:
        inner = "".join(f"    {part},\n" for part in parts)
        line = f"{shown}(\n{inner}){ends}"
    return f"```python\n{line}\n```"


def default_of(value: Any) -> str:
    """Return a default as code. A long list of names is shortened to its first name."""
    text = repr(value)
    return text if len(text) < 40 else "(...)"


def plain(annotation: Any) -> str:
    """Return a type as source code."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return re.sub(r"\b\w+\b", lambda match: ALIASES.get(match[0], match[0]), text)


def markdown(docstring: str, names: Sequence[str] = ()) -> str:
    """Convert a docstring to Markdown: indented blocks become Python code, and parameters a
    list."""
    parts: list[str] = []
    for block in re.split(r"\n\n", inspect.cleandoc(docstring)):
        if block.startswith("    "):
            kind = "" if "|--" in block else "python"
            code = textwrap.dedent(block)
            if parts and parts[-1].startswith(f"```{kind}\n"):
                parts[-1] = parts[-1].removesuffix("\n```") + f"\n\n{code}\n```"
            else:
                parts.append(f"```{kind}\n{code}\n```")
        else:
            parts.append("\n".join(listed(" ".join(block.split()).replace("``", "`"), names)))
    return "\n\n".join(parts)


def listed(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield a paragraph. If it describes parameters, yield a list item for each parameter."""
    one = rf"(?:{'|'.join(names or ['-'])})(?: \[L\])?"
    starts = [m.start() for m in re.finditer(rf"(?:(?<=^)|(?<=\. )){one}(?:, {one})*: ", text)]
    if not starts or starts[0] != 0:
        yield text
        return
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        about, _, words = text[start:end].strip().partition(": ")
        shown = ", ".join(re.sub(r"\w+", r"`\g<0>`", name, count=1) for name in about.split(", "))
        yield f"- {shown}: {words}"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE}")
