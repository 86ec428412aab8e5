"""`assay data tag`: add a domain tag to each row, by rules or by a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from assay.config.section import Count, Natural, Temperature, Text
from assay.curation.asking import AskingSettings, filled
from assay.curation.base import DataStage
from assay.curation.output import Output
from assay.curation.rules import BUILT_IN, Domain, best_domain, read_domains
from assay.data.completions import Record, TextPart
from assay.types import Problem

# Maximum number of characters of a text that the model sees.
SHOWN = 4000
REQUEST = """\
{text}

---

Which of these domains is the text above of: {tags}? Answer with one of these words and nothing \
else."""


class TagSettings(AskingSettings):
    """Tag each row with its domain, by rules or by a model.

    The new tag is put before the row's existing tags.
    """

    rules: Text | None = None
    """TOML file with one section per tag. A section has ``words`` (matched as whole words in any
    case) and ``patterns`` (regular expressions). None: Assay's built-in rules for ``code``,
    ``math``, ``logic``, ``science`` and ``writing``."""
    least: Natural = 2
    """Minimum number of distinct words and patterns of a domain that a text must match, for
    rules."""
    other: Text = "other"
    """Tag of rows with too few matches, and of rows for which the model names no tag."""
    compare: TextPart = "prompt"
    """Text of a row to classify: ``prompt``, ``completion``, or ``all``."""
    model: Text | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Model that classifies the rows, named as for `assay data collect`. None: rules classify the
    rows."""
    tags: tuple[Text, ...] = ()
    """Tags that the model may choose. Empty: the tags of the rules, and `other`."""
    request: Text = REQUEST
    """Prompt for the model, with the placeholders ``{text}`` and ``{tags}``."""
    num_samples: Count = 1
    """Number of completions of the model per row. The most frequent tag is used."""
    temperature: Temperature = 0.0
    """Sampling temperature. 0: greedy sampling, only for a single completion per row."""


def tag(settings: TagSettings, out: Output) -> None:
    """Write every row with its new tag."""
    domains = read_domains(Path(settings.rules) if settings.rules else BUILT_IN)
    if settings.model is None:
        tagged = _by_rules(settings, domains, out)
    else:
        tagged = _by_model(settings, settings.tags or (*domains, settings.other), out)
    counts: Counter[str] = Counter()
    for row, found in tagged:
        counts[found] += 1
        out.write({**row.keys, "tags": [found, *(one for one in row.tags if one != found)]})
    out.manifest.measured = {f"rows of {name}": count for name, count in counts.most_common()}


def _by_rules(
    settings: TagSettings, domains: Mapping[str, Domain], out: Output
) -> Iterator[tuple[Record, str]]:
    def text_of(row: Record) -> str:
        _ = row.tags
        return row.text(settings.compare)

    for row in out.open(settings.inputs, text_of):
        yield row, best_domain(domains, text_of(row), settings.least) or settings.other


def _by_model(
    settings: TagSettings, tags: Sequence[str], out: Output
) -> Iterator[tuple[Record, str]]:
    # The sampler imports PyTorch, which takes seconds; tagging by rules does not need PyTorch.
    from assay.curation.sampler import sampled

    def ask(row: Record) -> Problem:
        _ = row.tags
        texts = {"text": row.text(settings.compare)[:SHOWN], "tags": ", ".join(tags)}
        return Problem(row.source, filled(settings.request, texts), source=row.source)

    for row, (found,) in sampled(settings, out, ask, judged=False):
        named = [named_tag(one.answer_text, tags) for one in found.group.completions]
        votes = Counter(one for one in named if one is not None)
        yield row, votes.most_common(1)[0][0] if votes else settings.other


def named_tag(answer: str, tags: Sequence[str]) -> str | None:
    """Return the first tag that occurs as a whole word in an answer, in any case; else None."""
    # Longer tags come first, because a regular expression uses the first alternative that matches.
    # In another order, the tag "math" would match within "math proof".
    listed = "|".join(map(re.escape, sorted(tags, key=len, reverse=True)))
    found = re.search(rf"(?<!\w)(?:{listed})(?!\w)", answer, re.IGNORECASE)
    return next((one for one in tags if found and one.casefold() == found[0].casefold()), None)


STAGE = DataStage(TagSettings, tag)
