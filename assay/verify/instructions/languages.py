"""Detect a text's language and scripts deterministically."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from assay.errors import VerifierError
from assay.host.imports import slow_import

# Languages that langdetect can return: ISO 639-1 codes, and two codes for Chinese.
_CODES = """
    af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne
    nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw
"""
LANGUAGES = frozenset(_CODES.split())

_SEED = 0
_RENAMED = {"CJK": "HAN", "KANGXI": "HAN", "KATAKANA-HIRAGANA": "KATAKANA"}


@lru_cache(maxsize=512)
def detect_language(text: str) -> str | None:
    """Return the most probable language code in `LANGUAGES` for a text, by its letter sequences.

    Return None for a text without usable letters, such as a web address alone. For a text of a few
    words, the detected language is often wrong, but always the same. The language detection reads
    only the first 10,000 characters of a text.

    Raises VerifierError if the extra ``language`` is not installed.
    """
    with slow_import():
        factory, no_features = _factory()
    detector = factory.create()
    # langdetect samples letter sequences at random, so each call sets the seed.
    detector.seed = _SEED
    detector.append(text)
    try:
        found: str = detector.detect()
    except no_features:
        return None
    return found if found in LANGUAGES else None


def is_language(text: str, code: str) -> bool | None:
    """Return whether a text is in a language. None: no language is detected.

    code: a code in `LANGUAGES`, or ``zh`` for simplified or traditional Chinese.
    """
    found = detect_language(text)
    return None if found is None else code in (found, found.partition("-")[0])


def script_share(text: str) -> dict[str, float]:
    """Return the share of a text's letters in each script, the largest share first.

    Keys are Unicode script names in lower case, such as ``latin`` and ``han``. For a text without
    letters the result is empty.
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
    # NFKC maps a styled letter, such as a bold or full-width A, to the plain letter.
    plain = unicodedata.normalize("NFKC", char)[:1] or char
    first = unicodedata.name(plain, "UNKNOWN").partition(" ")[0]
    return _RENAMED.get(first, first).lower()


@lru_cache(maxsize=1)
def _factory() -> tuple[Any, type[Exception]]:
    """Return (langdetect's detector factory, its exception for texts without usable letters).

    The detector factory is private, so langdetect's global seed and profiles do not change.
    """
    try:
        from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
        from langdetect.lang_detect_exception import LangDetectException
    except ImportError as error:
        raise VerifierError(
            "language detection needs langdetect: install it with  pip install 'assay-rl[language]'"
        ) from error
    factory = DetectorFactory()
    # langdetect itself loads profiles in file system order.
    # The profile files are sorted, because their order changes floating-point sums and decides
    # ties.
    files = sorted(path for path in Path(PROFILES_DIRECTORY).iterdir() if path.is_file())
    factory.load_json_profile([path.read_text(encoding="utf-8") for path in files])
    return factory, LangDetectException
