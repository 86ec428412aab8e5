"""`assay data tag`: each row gets the tag of its domain, by rules or by a model's word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from assay.config.section import Natural, Text
from assay.curation.base import DataStage, Manifest, Output, StageSettings
from assay.curation.rules import BUILT_IN, best_domain, read_rules
from assay.curation.texts import Part, TextReader, text_of


class TagSettings(StageSettings):
    """Tag each row with its domain.

    The tag is put before the tags that a row has. No row goes.
    """

    rules: Text | None = None
    """A TOML file with a section for each tag: ``words`` (matched whole, in any case) and
    ``patterns`` (regular expressions). None: the table that comes with Assay, which has ``code``,
    ``math``, ``logic``, ``science`` and ``writing``."""

    least: Natural = 2
    """How many different words and patterns of a domain a text must match."""

    other: Text = "other"
    """The tag of rows that match no domain so often."""

    compare: Part = "prompt"
    """What is looked at of a row: its ``prompt``, its ``completion``, or ``all`` of it."""


def tag(settings: TagSettings, folder: Path) -> Manifest:
    """Write every row with its tag."""
    domains = read_rules(Path(settings.rules) if settings.rules else BUILT_IN)
    counts: Counter[str] = Counter()
    with Output("tag", settings, folder) as out:
        for row in out.open(settings.inputs, TextReader(settings.compare)):
            text = text_of(row, settings.compare)
            found = best_domain(domains, text, settings.least) or settings.other
            counts[found] += 1
            others = (one for one in row.get("tags", ()) if one != found)
            out.write({**row, "tags": [found, *others]})
        out.manifest.measured = {f"rows of {name}": count for name, count in counts.most_common()}
    return out.manifest


STAGE = DataStage("tag", TagSettings, tag)
