"""The base class of configuration sections, and common value types."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from assay.errors import message
from assay.validation import toml_words

Text = Annotated[str, Field(min_length=1)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Natural = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0.0)]
MOST = 65536
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Seed of random numbers: a signed 64-bit integer, as TOML stores integers."""
Count = Annotated[int, Field(ge=1, le=MOST)]
"""Number of objects that each need memory or a process."""
Epochs = Annotated[float, Field(gt=0.0, le=10_000.0)]
COOLEST, HOTTEST = 0.001, 100.0


def check_temperature(value: float) -> float:
    """Return a temperature unchanged; raises ValueError for a temperature outside the accepted
    range.

    Below the range, logits overflow. At a temperature above the accepted range, sampling is almost
    uniform over the vocabulary.
    """
    # Temperature 0 means greedy sampling, which does not divide the logits by the temperature.
    if value and not COOLEST <= value <= HOTTEST:
        raise ValueError(
            message("", f"{value:g}", f"0 (greedy), or a number from {COOLEST} to {HOTTEST:g}")[2:]
        )
    return value


Temperature = Annotated[float, Field(ge=0.0, le=HOTTEST), AfterValidator(check_temperature)]


class Section(BaseModel):
    """Base class of all configuration models: frozen, unknown keys forbidden, no type coercion."""

    model_config = ConfigDict(
        frozen=True,
        # Unknown keys are errors: if a misspelled key were ignored,
        # its setting would keep the default.
        extra="forbid",
        # Types are not converted: a quoted number, or true instead of 1, is an error.
        strict=True,
        # `--help`, error messages and the reference page show the docstring below a field.
        use_attribute_docstrings=True,
        # Infinite numbers are errors: TOML can express inf,
        # and inf would satisfy every lower bound.
        allow_inf_nan=False,
    )

    # Lists become tuples: TOML has only lists, and strict validation rejects a list for a tuple.
    # A field with a list would also make a frozen model unhashable.
    @field_validator("*", mode="before")
    @classmethod
    def _freeze_list(cls, value: object) -> object:
        return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def found_words(value: object, accepted: str, remedy: str = "") -> str:
    # The message omits the key, because the error report puts file,
    # line and key before the message.
    return message("", toml_words(value), accepted, remedy).removeprefix(": ")
