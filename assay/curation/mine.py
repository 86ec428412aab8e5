"""`assay data mine`: find the documents of a large pool that resemble a seed corpus."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from assay.config.section import Epochs, Natural, Seed, Text
from assay.curation.base import DataStage, StageSettings
from assay.curation.output import Output
from assay.data.completions import Record
from assay.data.overlap import words_in

Share = Annotated[float, Field(ge=0.0, le=1.0)]
BUCKETS = 2**18
"""Number of weights of a classifier. N-grams are mapped to weights by a hash."""
LEARNING_RATE = 0.5


class MineSettings(StageSettings):
    """Select the documents of a pool that resemble those of a seed corpus.

    A classifier learns to distinguish the seeds from random documents of the pool: logistic
    regression on word n-grams. The documents with the highest scores are kept. Then the domain rule
    applies: for a site with many kept documents, sections with a high share of kept ones are added
    completely. For another round, add the output to the seeds. Memory grows by about 200 bytes per
    document. DeepSeekMath, arXiv 2402.03300, section 2.1.
    """

    seeds: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of example documents."""

    keep: Share = 0.1
    """Share of the pool that is kept for its score."""

    n: Natural = 3
    """Maximum number of words in an n-gram."""

    epochs: Epochs = 3.0
    """Epochs of the classifier over seeds and sampled documents."""

    site_share: Share = 0.1
    """The domain rule examines sites of which more than this share was kept. A site is the host in
    the key ``url``. 1: rule off."""

    section_share: Share = 0.25
    """On these sites, a section is added completely if more than this share of it was kept. A
    section is the host and the first part of the path. In the paper, people review such
    sections."""

    tag: Text | None = None
    """Tag of true positives in the `tags` of a labeled pool. The manifest then has precision and
    recall. The classifier does not use it. None: not measured."""

    seed: Seed = 0
    """Random seed of the sample and of the training order."""


def mine(settings: MineSettings, out: Output) -> None:
    """Write the kept documents, each with the key ``mined``: its score and the reason."""
    out.add_filters("score")
    pool, seeds = (
        out.open(sources, lambda row: row.text("all"), role=role)
        for sources, role in ((settings.inputs, ""), (settings.seeds, "seeds"))
    )
    scores = _scores(settings, pool, seeds)
    by_score = np.zeros(len(pool), np.bool_)
    by_score[np.argsort(-scores, kind="stable")[: max(1, round(settings.keep * len(pool)))]] = True
    lowest = float(scores[by_score].min())
    by_section, sections = _whole_sections(settings, pool, by_score)
    wanted = np.zeros(len(pool), np.bool_)
    for index, row in enumerate(pool):
        wanted[index] = settings.tag in row.tags
        score = round(float(scores[index]), 4)
        if by_score[index] or by_section[index]:
            why = "score" if by_score[index] else "section"
            out.write({**row.keys, "mined": {"score": score, "by": why}})
        else:
            out.take("score", row.keys, f"{score:.3f} is below {lowest:.3f}")
    found: dict[str, Any] = {
        "lowest score kept": lowest,
        "by their score": int(by_score.sum()),
        "by their section": int((by_section & ~by_score).sum()),
        "sections": ", ".join(sections) or "none",
    }
    for name, kept in (("by score", by_score), ("of all", by_score | by_section)):
        if settings.tag is not None:
            right = int((kept & wanted).sum())
            found[f"precision {name}"] = right / int(kept.sum())
            found[f"recall {name}"] = right / max(1, int(wanted.sum()))
    out.manifest.measured |= found


def _scores(
    settings: MineSettings, pool: Sequence[Record], seeds: Sequence[Record]
) -> NDArray[np.float64]:
    """Return the classifier's probability for each document of the pool that it is a seed.

    Logistic regression by AdaGrad, one document at a time. An n-gram counts once per document.
    """
    random = np.random.default_rng(settings.seed)
    # As many random pool documents as seeds serve as negatives. Some of them are positives, which a
    # linear model tolerates.
    drawn = random.permutation(len(pool))[: len(seeds)]
    given = [(_grams(row, settings.n), 1.0) for row in seeds]
    given += [(_grams(pool[index], settings.n), 0.0) for index in drawn.tolist()]
    weights, squares = np.zeros(BUCKETS), np.full(BUCKETS, 1e-6)
    steps = round(settings.epochs * len(given))
    orders = [random.permutation(len(given)) for _ in range(-(-steps // len(given)))]
    for index in np.concatenate(orders)[:steps].tolist():
        grams, label = given[index]
        size = len(grams) ** -0.5
        slope = (_probability(weights[grams].sum() * size) - label) * size
        # AdaGrad: rare n-grams keep a large learning rate.
        squares[grams] += slope**2
        weights[grams] -= LEARNING_RATE * slope / np.sqrt(squares[grams])
    found = array("d")
    for row in pool:
        grams = _grams(row, settings.n)
        found.append(_probability(weights[grams].sum() * len(grams) ** -0.5))
    return np.array(found)


def _grams(row: Record, most: int) -> NDArray[np.int64]:
    """Return the buckets of a document's n-grams, from single words on. Numbers are one word."""
    # Numbers are equal to the classifier, or it would learn the particular numbers of the seeds.
    words = ["0" if word.isdigit() else word for word in words_in(row.text("all"))]
    grams = (
        zlib.crc32(" ".join(words[start : start + size]).encode(errors="replace")) % BUCKETS
        for size in range(1, most + 1)
        for start in range(max(1, len(words) - size + 1))
    )
    # Features say whether an n-gram occurs, not how often. Otherwise a page that repeats one phrase
    # would dominate.
    return np.unique(np.fromiter(grams, np.int64))


def _probability(logit: float) -> float:
    return float(np.exp(-np.logaddexp(0.0, -logit)))


def _whole_sections(
    settings: MineSettings, pool: Sequence[Record], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], list[str]]:
    """Return the documents in sections that are added completely, and the sections' names."""
    places = [_place(row.keys.get("url")) for row in pool]
    shares: list[dict[str, float]] = []
    for names in zip(*places, strict=True):
        among = Counter(name for name, one in zip(names, kept, strict=True) if one and name)
        shares.append({name: among[name] / count for name, count in Counter(names).items()})
    sites, sections = shares
    whole = {
        section
        for site, section in {*places}
        if sites[site] > settings.site_share and sections[section] > settings.section_share
    }
    return np.array([section in whole for _, section in places]), sorted(whole)


def _place(url: Any) -> tuple[str, str]:
    """Return the site and the section of a URL, or empty texts."""
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    section = parts.path.strip("/").partition("/")
    return parts.netloc, f"{parts.netloc}/{section[0]}" if parts.netloc and section[1] else ""


STAGE = DataStage(MineSettings, mine)
