"""What the service knows of a verifier: for a user's, without their code in this process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from assay.errors import VerifierError
from assay.verify.base import Field, Verifier, resolve
from assay.verify.expression import BUILT_IN
from assay.verify.reward_model.checkpoint import checkpoint_hash
from assay.verify.serving.options import complaint_of_options, options_digest

Takes = Literal["completion", "group", "verdicts", "batch"]
Lane = Literal["worker", "thread", "device", "inline"]


@dataclass(frozen=True)
class Card:
    """The facts of one verifier under one set of options; error: why it cannot be used.

    name: without a pinned version. seconds: its own deadline, where it has one. verifier: the thing
    itself, of built-in ones only.
    """

    name: str
    version: int = 0
    hash: str = ""
    takes: Takes = "completion"
    lane: Lane = "worker"
    text_only: bool = False
    cached: bool = False
    weight: float = 1.0
    bounds: tuple[float, float] | None = (0.0, 1.0)
    seconds: float | None = None
    fields: tuple[Field, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    verifier: Verifier | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """``name@version``, or the name alone of one that cannot be used."""
        return self.name if self.error else f"{self.name}@{self.version}"

    @property
    def whole(self) -> bool:
        """Whether it is asked about a group at once."""
        return self.takes != "completion" and not (self.takes == "batch" and self.lane == "device")

    def describe(self) -> dict[str, Any]:
        """Return version and hash, and where they apply ``options`` and ``checkpoint``.

        options: the digest of what the configuration sets. checkpoint: hashes of the model that
        judges on the device, as its option ``path`` names it, or several.
        """
        facts: dict[str, Any] = {"version": self.version, "hash": self.hash}
        if digest := options_digest(self.options):
            facts["options"] = digest
        if self.lane == "device" and (path := self.options.get("path")):
            from assay.verify.reward_model.facts import checkpoint_folder  # workers do without it

            paths = cast("list[str]", path) if isinstance(path, list | tuple) else [str(path)]
            folders = map(checkpoint_folder, paths)
            facts["checkpoint"] = "+".join(map(checkpoint_hash, folders))
        return facts


def built_in_card(name: str, options: Mapping[str, Any]) -> Card:
    """Return the card of a built-in verifier; what is wrong with it or its options is its `error`."""
    try:
        verifier = resolve(name)
    except VerifierError as error:
        return Card(name, error=str(error))
    return Card(
        name=verifier.name,
        version=verifier.version,
        hash=verifier.hash,
        takes=verifier.takes,
        lane=verifier.lane,
        text_only=verifier.text_only,
        cached=verifier.cached,
        weight=verifier.weight,
        bounds=verifier.bounds,
        seconds=verifier.limits.seconds,
        fields=verifier.fields,
        options=options,
        verifier=verifier,
        error=_complaint(verifier, options),
    )


def _complaint(verifier: Verifier, options: Mapping[str, Any]) -> str:
    """Return why a built-in verifier cannot work with these options on this machine, or ""."""
    error = complaint_of_options(verifier.name, verifier.fields, verifier.lane, options)
    if not error and verifier.check_options is not None:
        try:
            verifier.check_options(options)
        except VerifierError as complaint:
            error = str(complaint)
    return error


def card_facts(verifier: Verifier) -> dict[str, Any]:
    """Return what a worker says of a user's verifier, as plain values for `user_card`."""
    return {
        "name": str(verifier.name),
        "version": int(verifier.version),
        "hash": verifier.hash,
        "takes": verifier.takes,
        "text_only": bool(verifier.text_only),
        "cached": bool(verifier.cached),
        "weight": float(verifier.weight),
        "bounds": None if verifier.bounds is None else [float(each) for each in verifier.bounds],
        "seconds": None if verifier.limits.seconds is None else float(verifier.limits.seconds),
        "fields": [
            [str(one.name), str(one.accepts), bool(one.needed), bool(one.from_row)]
            for one in verifier.fields
        ],
    }


def user_card(name: str, facts: Mapping[str, Any], options: Mapping[str, Any]) -> Card:
    """Return the card that a worker's words make; a user's verifier runs in workers only.

    One that declares no fields, as a plain function, may have any options.
    """
    bare = name.partition("@")[0]
    if facts.get("error"):
        return Card(name, error=str(facts["error"]))
    try:
        fields = tuple(
            Field(one, accepts, needed=needed, from_row=from_row)
            for one, accepts, needed, from_row in facts["fields"]
        )
        if facts["takes"] not in get_args(Takes) or not math.isfinite(facts["weight"]):
            raise ValueError(f"takes {facts['takes']!r}, weight {facts['weight']!r}")
        return Card(
            name=facts["name"],
            version=facts["version"],
            hash=facts["hash"],
            takes=facts["takes"],
            text_only=facts["text_only"],
            cached=facts["cached"],
            weight=facts["weight"],
            bounds=cast("tuple[float, float] | None", facts["bounds"] and tuple(facts["bounds"])),
            seconds=facts["seconds"],
            fields=fields,
            options=options,
            error=complaint_of_options(bare, fields, "worker", options) if fields else "",
        )
    except (KeyError, TypeError, ValueError) as error:
        return Card(name, error=f"verifier {name}: it does not describe itself well: {error}")


def is_built_in(name: str) -> bool:
    """Whether a name, pinned or not, is one of ours."""
    return name.partition("@")[0] in BUILT_IN
