"""`assay data tag`: each row gets the tag of its domain, by rules or by a model's word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from assay.config.section import Count, Natural, Temperature, Text
from assay.curation.asking import Asked, AskingSettings
from assay.curation.base import DataStage, Manifest, Output, Row
from assay.curation.rewrite import filled
from assay.curation.rules import BUILT_IN, Domain, best_domain, read_rules
from assay.curation.texts import Part, TextReader, text_of
from assay.types import Problem

SHOWN = 4000  # characters of a text that a model is shown
REQUEST = """\
{text}

---

Which of these domains is the text above of: {tags}? Answer with one of these words and nothing \
else."""


class TagSettings(AskingSettings):
    """Tag each row with its domain, by rules or by a model.

    The tag is put before the tags that a row has.
    """

    rules: Text | None = None
    """A TOML file with a section for each tag: ``words`` (matched whole, in any case) and
    ``patterns`` (regular expressions). None: the table that comes with Assay, which has ``code``,
    ``math``, ``logic``, ``science`` and ``writing``."""
    least: Natural = 2
    """By rules: how many different words and patterns of a domain a text must match."""
    other: Text = "other"
    """The tag of rows that match no domain so often, or of which the model names none."""
    compare: Part = "prompt"
    """What is looked at of a row: its ``prompt``, its ``completion``, or ``all`` of it."""
    model: Text | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """A model that is asked, as `assay data collect` has it. None: the rules decide."""
    tags: tuple[Text, ...] = ()
    """The tags that the model chooses from. Empty: those of the rules, and `other`."""
    request: Text = REQUEST
    """What the model is asked, with ``{text}`` and ``{tags}`` in it."""
    num_samples: Count = 1
    """Answers of the model, of which the most frequent tag counts."""
    temperature: Temperature = 0.0
    """Of the model's answers. 0: greedy, for a single one."""


def tag(settings: TagSettings, folder: Path) -> Manifest:
    """Write every row with its tag."""
    domains = read_rules(Path(settings.rules) if settings.rules else BUILT_IN)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        out = stack.enter_context(Output("tag", settings, folder))
        if settings.model is None:
            tagged = _by_rules(settings, domains, out)
        else:
            tagged = _by_model(settings, settings.tags or (*domains, settings.other), out, stack)
        for row, found in tagged:
            counts[found] += 1
            others = (one for one in row.get("tags", ()) if one != found)
            out.write({**row, "tags": [found, *others]})
        out.manifest.measured = {f"rows of {name}": count for name, count in counts.most_common()}
    return out.manifest


def _by_rules(
    settings: TagSettings, domains: dict[str, Domain], out: Output
) -> Iterator[tuple[Row, str]]:
    for row in out.open(settings.inputs, TextReader(settings.compare)):
        text = text_of(row, settings.compare)
        yield row, best_domain(domains, text, settings.least) or settings.other


def _by_model(
    settings: TagSettings, tags: Sequence[str], out: Output, stack: ExitStack
) -> Iterator[tuple[Row, str]]:
    from assay.curation.sampler import Sampler

    sampler = Sampler(settings, stack)
    rows = sampler.read(out, judged=False, read=partial(_read_asked, settings, tags))
    for part in sampler.parts(rows):
        for asked, group, _ in sampler.sample(part, out):
            named = [named_tag(one.answer_text, tags) for one in group.completions]
            votes = Counter(one for one in named if one is not None)
            yield asked.row, votes.most_common(1)[0][0] if votes else settings.other
        out.flush()


def _read_asked(
    settings: TagSettings, tags: Sequence[str], row: Any, where: str, default_id: str
) -> Asked:
    """Return a row, and the question about it as a problem."""
    kept = TextReader(settings.compare)(row, where, default_id)
    texts = {"text": text_of(kept, settings.compare)[:SHOWN], "tags": ", ".join(tags)}
    return Asked(kept, Problem(default_id, filled(settings.request, texts), source=where))


def named_tag(answer: str, tags: Sequence[str]) -> str | None:
    """Return the tag that stands first in an answer, as a whole word in any case."""
    listed = "|".join(map(re.escape, sorted(tags, key=len, reverse=True)))
    found = re.search(rf"(?<!\w)(?:{listed})(?!\w)", answer, re.IGNORECASE)
    return next((one for one in tags if found and one.casefold() == found[0].casefold()), None)


STAGE = DataStage("tag", TagSettings, tag)
