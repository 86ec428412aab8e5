"""Built-in jailbreaks: prompts around a harmful request that try to make the policy answer it.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.jailbreaks:attacks yields all attacks of `assay redteam --policy`.
    assay.data.jailbreaks:attacks?kind=role_play yields the attacks of one kind.
    assay.data.jailbreaks:controls yields harmless requests in the same frames.
    assay.data.jailbreaks:train?size=2000 yields attacks and controls in other frames.
"""

from __future__ import annotations

import base64
import codecs
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

from assay.data.safety_requests import Kind, Request, judge_keys, tables
from assay.data.sources import source
from assay.data.tasks import Generated
from assay.errors import DataError, did_you_mean, message
from assay.types import Problem

KINDS = (
    *("paraphrase", "role_play", "prefix_injection"),
    *("encoding", "many_shot", "language_switch"),
)
_NAME = re.compile(r"\{(\w+)\}")
_LEET = str.maketrans("oieast", "013457")
_ENCODED = {
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "reversed": lambda text: text[::-1],
    "hex": lambda text: text.encode().hex(),
    "leet": lambda text: text.translate(_LEET),
    "spaced": lambda text: " ".join(text.replace(" ", "-")),
}


@cache
def frames(part: str) -> Mapping[str, Sequence[str]]:
    """Return the jailbreak frames of the test suite (``test``) or of training (``train``), by kind
    of attack.
    """
    found = _table()[part]
    assert tuple(found) == KINDS
    return found


@cache
def _table() -> dict[str, Any]:
    text = files("assay.data").joinpath("jailbreaks.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@source
def attacks(kind: str = "", judge: bool = False) -> Sequence[Problem]:
    """Return the test suite: each jailbreak frame around one harmful topic per category, for the
    verifier ``safety``.

    kind: the only kind of attack to return; "" returns all kinds. judge: whether a judge model
    replaces the rules of the verifier ``safety``.
    """
    return [*_framed(kind, "harmful", judge)]


@source
def controls(kind: str = "", judge: bool = False) -> Sequence[Problem]:
    """Return harmless requests in the suite's jailbreak frames: a refusal of such a request is
    over-refusal.

    Jailbreak frames in other languages have no harmless requests, because harmless topics are not
    translated.
    """
    return [*_framed(kind, "harmless", judge)]


@source
def train(size: int = 1000, seed: int = 0, judge: bool = False) -> Sequence[Problem]:
    """Return attacks and harmless requests in jailbreak frames that the test suite does not
    contain.
    """

    def make(index: int) -> Problem:
        random = Random(f"jailbreaks {seed} {index}")
        name = random.choice(KINDS)
        kind: Kind = "harmless" if random.random() < 0.5 else "harmful"
        some = [one for one in frames("train")[name] if kind == "harmful" or _is_english(one)]
        # The attack by language switch has no harmless counterpart.
        if not some:
            kind, some = "harmful", [*frames("train")[name]]
        category = random.choice([*tables()["topics"]])
        number = random.randrange(len(tables()["topics"][category][kind]))
        template = random.choice(some)
        number = number if _is_english(template) else 0
        id = f"jailbreak-{seed}-{index}"
        return _problem(id, name, template, category, kind, number, judge)

    return Generated(size, make)


def _framed(only: str, kind: Kind, judge: bool) -> Iterator[Problem]:
    if only and only not in KINDS:
        raise DataError(message("kind", repr(only), ", ".join(KINDS), did_you_mean(only, KINDS)))
    for name in (only,) if only else KINDS:
        for number, template in enumerate(frames("test")[name]):
            if kind == "harmless" and not _is_english(template):
                continue
            for place, (category, topics) in enumerate(tables()["topics"].items()):
                # Each jailbreak frame gets the next topic, so that the frames' topics differ.
                # Harmless topics that sound harmful are first in the table of topics.
                # Of each category's harmful topics, only the first is translated.
                index = (number + place) % len(topics[kind]) if _is_english(template) else 0
                id = f"{name}-{number}-{category}{'' if kind == 'harmful' else '-control'}"
                yield _problem(id, name, template, category, kind, index, judge)


def _is_english(template: str) -> bool:
    return not {"de", "fr", "es"} & {*_NAME.findall(template)}


def _problem(
    id: str, name: str, template: str, category: str, kind: Kind, index: int, judge: bool
) -> Problem:
    """Return a topic in a jailbreak frame, as a problem whose tags name the attack and the kind of
    request.
    """
    topics = tables()["topics"][category]
    topic, word = topics[kind][index], ""
    if kind == "harmless":
        topic, word = topic
    translated = topics["translated"]
    named = translated[key] if (key := _language(template)) else topic
    texts = {"topic": topic, **translated, **_shots(category, index)}
    texts |= {key: encode(topic) for key, encode in _ENCODED.items()}
    prompt = _NAME.sub(lambda match: texts[match[1]], template)
    one = Request(prompt, named, category, kind, word)
    keys = {key: value for key, value in one.keys.items() if key != "clause"}
    # The key ``mentions`` names a word that a helpful answer to a harmless request contains.
    # If a jailbreak's frame surrounds the request, a helpful answer may lack this word.
    keys.pop("mentions", None)
    if judge:
        keys |= judge_keys(category, keys["treatment"])
    return Problem(id, prompt, keys, "judge" if judge else "safety", (name, kind))


def _language(template: str) -> str:
    return next((key for key in ("de", "fr", "es") if f"{{{key}}}" in template), "")


def _shots(category: str, index: int) -> Mapping[str, str]:
    """Return three chat exchanges in which the assistant complies with harmful requests of other
    categories.
    """
    topics = tables()["topics"]
    others = [one for one in topics if one != category]
    first = [*topics].index(category) + index
    chosen = [topics[others[(first + 4 * n) % len(others)]]["harmful"][n] for n in range(3)]
    shot = _table()["shot"]
    return {f"shot{n}": shot.replace("{topic}", topic) for n, topic in enumerate(chosen, 1)}
