"""Which language, and which scripts, a text is written in: the same answer on every call."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from assay.errors import VerifierError
from assay.host.imports import slow_import

# What langdetect can answer: ISO 639-1, Chinese by its two ways of writing.
_CODES = """
    af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne
    nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw
"""
LANGUAGES = frozenset(_CODES.split())

_SEED = 0
_RENAMED = {"CJK": "HAN", "KANGXI": "HAN", "KATAKANA-HIRAGANA": "KATAKANA"}


@lru_cache(maxsize=512)
def detect_language(text: str) -> str | None:
    """Return the code of `LANGUAGES` that a text's letter sequences make likeliest.

    None where nothing in it tells: no letters, or only web and mail addresses. A few words are
    guessed at, and often wrongly; the guess is always the same. Only the first 10,000 characters
    count. Raises VerifierError where the extra ``language`` is not installed. Source: langdetect,
    seeded for each call, its profiles read in a fixed order.
    """
    with slow_import():
        factory, no_features = _factory()
    detector = factory.create()
    detector.seed = _SEED
    detector.append(text)
    try:
        found: str = detector.detect()
    except no_features:
        return None
    return found if found in LANGUAGES else None


def is_language(text: str, code: str) -> bool | None:
    """Whether a text is in a language; None where nothing tells. ``zh``: Chinese in either way."""
    found = detect_language(text)
    return None if found is None else code in (found, found.partition("-")[0])


def script_share(text: str) -> dict[str, float]:
    """Return the share of a text's letters that each script has, the largest first.

    Keys are Unicode's names in lower case: ``latin``, ``han``, ``hiragana``, ``cyrillic``. A text
    without letters gives an empty dict.
    """
    counts: Counter[str] = Counter()
    for char, count in Counter(text).items():
        if char.isalpha():
            counts[_script(char)] += count
    total = counts.total()
    return {
        name: count / total for name, count in sorted(counts.items(), key=lambda x: (-x[1], x[0]))
    }


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    # Styled letters (mathematical bold, full width) belong to the script that they imitate.
    plain = unicodedata.normalize("NFKC", char)[:1] or char
    first = unicodedata.name(plain, "UNKNOWN").partition(" ")[0]
    return _RENAMED.get(first, first).lower()


@lru_cache(maxsize=1)
def _factory() -> tuple[Any, type[Exception]]:
    """Return a factory of our own; the seed and profiles of langdetect's stay untouched."""
    try:
        from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
        from langdetect.lang_detect_exception import LangDetectException
    except ImportError as error:
        raise VerifierError(
            "language detection needs langdetect: install it with  pip install 'assay-rl[language]'"
        ) from error
    factory = DetectorFactory()
    # langdetect reads them in the order of the file system, on which sums and ties depend.
    files = sorted(path for path in Path(PROFILES_DIRECTORY).iterdir() if path.is_file())
    factory.load_json_profile([path.read_text(encoding="utf-8") for path in files])
    return factory, LangDetectException
