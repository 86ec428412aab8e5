"""`assay data mine`: select the documents of a large pool that resemble a seed corpus."""

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
"""Number of weights of the classifier. A hash maps each n-gram to a weight."""
LEARNING_RATE = 0.5


class MineSettings(StageSettings):
    """Select the documents of a pool that resemble a seed corpus.

    The method follows DeepSeekMath (arXiv 2402.03300, section 2.1). A classifier, logistic
    regression on word n-grams, learns to distinguish the seeds from random documents of the pool.
    The documents with the highest scores are kept. Then the domain rule examines sites with many
    kept documents: if a high share of a site section's documents was kept, the whole section is
    added. For another round of mining, add the output rows to the seeds. Memory grows by about 200
    bytes per document.
    """

    seeds: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of example documents, the seed corpus."""

    keep: Share = 0.1
    """Share of the pool that is kept because of its score."""

    n: Natural = 3
    """Maximum number of words in an n-gram."""

    epochs: Epochs = 3.0
    """Number of training epochs of the classifier over the seeds and the random documents."""

    site_share: Share = 0.1
    """The domain rule examines a site if more than this share of the site's documents was kept. A
    site is the host in the key ``url``. 1: the domain rule is off."""

    section_share: Share = 0.25
    """On an examined site, a section is added completely if more than this share of its documents
    was kept. A section is the host and the first part of the URL's path. In the paper, people
    review such sections."""

    tag: Text | None = None
    """Tag of true positives, for a pool whose rows have labels in `tags`. The manifest then
    contains precision and recall. The classifier does not use the tag. None: precision and recall
    are not measured."""

    seed: Seed = 0
    """Random seed of the sampled documents and of the training order."""


def mine(settings: MineSettings, out: Output) -> None:
    """Write the kept documents, each with its score and the reason under the key ``mined``."""
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
    """Return the score of each pool document: the probability that the document is a seed.

    The classifier is logistic regression, trained by AdaGrad on one document at a time. An n-gram
    that a document repeats counts once.
    """
    random = np.random.default_rng(settings.seed)
    # Random documents of the pool are the negative examples, as many as there are seeds.
    # Some of these documents resemble the seeds, which a linear model tolerates.
    drawn = random.permutation(len(pool))[: len(seeds)]
    given = [(_grams(row, settings.n), 1.0) for row in seeds]
    given += [(_grams(pool[index], settings.n), 0.0) for index in drawn.tolist()]
    weights, squares = np.zeros(BUCKETS), np.full(BUCKETS, 1e-6)
    steps = round(settings.epochs * len(given))
    orders = [random.permutation(len(given)) for _ in range(-(-steps // len(given)))]
    for index in np.concatenate(orders)[:steps].tolist():
        grams, label = given[index]
        # Features are scaled to unit length, so that long documents cause no larger weight updates.
        size = len(grams) ** -0.5
        slope = (_probability(weights[grams].sum() * size) - label) * size
        # With AdaGrad, the weights of rare n-grams keep a large learning rate.
        squares[grams] += slope**2
        weights[grams] -= LEARNING_RATE * slope / np.sqrt(squares[grams])
    found = array("d")
    for row in pool:
        grams = _grams(row, settings.n)
        found.append(_probability(weights[grams].sum() * len(grams) ** -0.5))
    return np.array(found)


def _grams(row: Record, most: int) -> NDArray[np.int64]:
    """Return the weight indices of a document's n-grams, from single words to ``most`` words."""
    # All numbers are mapped to 0, since the classifier would otherwise learn the seeds' numbers.
    words = ["0" if word.isdigit() else word for word in words_in(row.text("all"))]
    grams = (
        zlib.crc32(" ".join(words[start : start + size]).encode(errors="replace")) % BUCKETS
        for size in range(1, most + 1)
        for start in range(max(1, len(words) - size + 1))
    )
    # Repeated n-grams count once, because a page that repeats one phrase would dominate training.
    return np.unique(np.fromiter(grams, np.int64))


def _probability(logit: float) -> float:
    # 1 / (1 + exp(-x)) would overflow for large negative logits.
    return float(np.exp(-np.logaddexp(0.0, -logit)))


def _whole_sections(
    settings: MineSettings, pool: Sequence[Record], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], list[str]]:
    """Return a mask of the documents that the domain rule adds, and the names of their sections."""
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
    """Return the site and the section of a URL; "" for a part that the URL lacks."""
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    section = parts.path.strip("/").partition("/")
    return parts.netloc, f"{parts.netloc}/{section[0]}" if parts.netloc and section[1] else ""


STAGE = DataStage(MineSettings, mine)
