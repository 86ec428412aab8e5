"""What the configuration says of a reward model, checked before a run: shared by both verifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.verify.base import Field
from assay.verify.reward_model.text import FORMATS, PLAIN, READS, TOO_LONG

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Common:
    """The options of every reward model. paths: one checkpoint, or the members of an ensemble."""

    paths: tuple[str, ...]
    device: str | None
    dtype: str | None
    max_tokens: int | None
    batch_tokens: int | None
    format: str | None
    plain_template: str
    reads: str
    too_long: Any
    threshold: float


def common(options: Mapping[str, Any], name: str) -> Common:
    """Read the shared options; raises VerifierError for one that is not accepted."""
    checked(options, COMMON_FIELDS, name)
    path: Any = options.get("path")
    if path is None:
        remedy = "set it in the configuration"
        raise VerifierError(message(f"{place(name)}.path", "nothing", _PATH, remedy))
    return Common(
        paths=(path,) if isinstance(path, str) else tuple(path),
        device=options.get("device"),
        dtype=options.get("dtype"),
        max_tokens=options.get("max_tokens"),
        batch_tokens=options.get("batch_tokens"),
        format=options.get("format"),
        plain_template=options.get("plain_template") or PLAIN,
        reads=options.get("reads") or "all",
        too_long=options.get("too_long") or "cut_prompt",
        threshold=options.get("threshold", 0.5),
    )


def checked(options: Mapping[str, Any], fields: tuple[Field, ...], name: str) -> None:
    """Raise VerifierError for the first option that its field does not accept."""
    for field in fields:
        value = options.get(field.name)
        if value is not None and field.check is not None and not field.check(value):
            where = f"{place(name)}.{field.name}"
            raise VerifierError(message(where, repr(value)[:80], field.accepts))


def place(name: str) -> str:
    """Return where a verifier's options stand in a configuration."""
    return f"verification.options.{name}"


def one_of(*accepted: str) -> Callable[[Any], bool]:
    """Return a check for one of a few words."""
    return lambda value: isinstance(value, str) and value in accepted


def option(name: str, accepts: str, default: Any, check: Callable[[Any], bool]) -> Field:
    """Return a field that only the configuration may set."""
    return Field(name, accepts, default=default, check=check, from_row=False)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number above 0."""
    return type(value) is int and value > 0


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return type(value) in (int, float) and abs(value) < float("inf")


def is_text(value: Any) -> bool:
    """Whether a value is text that is not empty."""
    return isinstance(value, str) and bool(value)


def _is_path(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_text, cast("list[Any]", value)))
    return is_text(value)


_PATH = "a run of [reward_model] (or its checkpoint, as RUN@best), a folder in Hugging Face layout, a hub name, or a list of them; a reward_model.json there says the other options, where they are not set"

COMMON_FIELDS = (
    option("path", _PATH, None, _is_path),
    option("device", "cpu, cuda or cuda:N; null: CUDA where there is one", None, is_text),
    option(
        "dtype",
        f"{', '.join(DTYPES)}; null: bfloat16 on CUDA, float32 elsewhere",
        None,
        one_of(*DTYPES),
    ),
    option("max_tokens", "a whole number above 0; null: what the model takes", None, is_count),
    option(
        "batch_tokens",
        "tokens of one padded batch; null: 16384 on CUDA, 4096 elsewhere",
        None,
        is_count,
    ),
    option(
        "format",
        f"{', '.join(FORMATS)}; null: chat where there is a template",
        None,
        one_of(*FORMATS),
    ),
    option(
        "plain_template",
        "text with {prompt} and {completion}, of format plain",
        PLAIN,
        lambda value: is_text(value) and "{completion}" in value,
    ),
    option("reads", "all, or answer: what stands outside the think block", "all", one_of(*READS)),
    option("too_long", ", ".join(TOO_LONG), "cut_prompt", one_of(*TOO_LONG)),
    option("threshold", "a number: from it on a probability passes", 0.5, is_number),
)
