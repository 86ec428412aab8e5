"""Language and script detection: right on sentences, defined on fragments, the same every time."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.verify.instructions import languages
from assay.verify.instructions.languages import (
    LANGUAGES,
    detect_language,
    is_language,
    script_share,
)

SENTENCES = {
    "en": "The weather was fine this morning, so we walked along the river to the market.",
    "de": "Das Wetter war heute Morgen schön, deshalb gingen wir am Fluss entlang zum Markt.",
    "fr": "Il faisait beau ce matin, alors nous avons marché le long de la rivière jusqu'au marché.",
    "ru": "Сегодня утром была хорошая погода, и мы пошли вдоль реки на рынок.",
    "hi": "आज सुबह मौसम अच्छा था इसलिए हम नदी के किनारे बाजार तक गए।",
    "zh-cn": "今天早上天气很好，所以我们沿着河边走到了市场。",
    "ja": "今朝は天気が良かったので、川沿いを歩いて市場まで行きました。",
    "ar": "كان الطقس جميلا هذا الصباح لذلك مشينا على طول النهر إلى السوق.",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_has_its_language(code: str) -> None:
    assert detect_language(SENTENCES[code]) == code


@pytest.mark.parametrize("text", ["", "   ", "12 + 30 = 42", "!!! ...", "https://example.org/a"])
def test_a_text_without_words_has_no_language(text: str) -> None:
    assert detect_language(text) is None
    assert is_language(text, "en") is None


def test_the_guess_does_not_depend_on_what_was_asked_before_nor_on_global_randomness() -> None:
    fragments = ["Ok sure", "no", "la mesa", "Hotel Bar", "Tag", "pan con tomate"]
    first = [detect_language(text) for text in fragments]
    detect_language.cache_clear()
    random.seed(99)
    backwards = [detect_language(text) for text in reversed(fragments)]
    assert backwards[::-1] == first


def test_the_seed_of_langdetect_itself_is_left_alone() -> None:
    from langdetect import DetectorFactory

    before = DetectorFactory.seed
    detect_language("A sentence that nobody asked about before.")
    assert DetectorFactory.seed is before


def test_the_codes_are_those_that_langdetect_knows() -> None:
    factory, _ = languages._factory()
    assert set(factory.get_lang_list()) == LANGUAGES


def test_chinese_without_a_region_is_either() -> None:
    assert is_language(SENTENCES["zh-cn"], "zh") is True
    assert is_language(SENTENCES["zh-cn"], "zh-tw") is False


def test_a_missing_extra_names_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langdetect.detector_factory", None)
    languages._factory.cache_clear()
    detect_language.cache_clear()
    try:
        with pytest.raises(VerifierError, match=r"pip install 'assay-rl\[language\]'"):
            detect_language("never asked before")
    finally:
        languages._factory.cache_clear()


def test_the_module_imports_nothing_heavy() -> None:
    code = "import sys, assay.verify.instructions.languages; sys.exit('langdetect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_scripts_are_shares_of_letters() -> None:
    assert script_share("abc где 漢字, 12!") == {"cyrillic": 0.375, "latin": 0.375, "han": 0.25}
    assert script_share("𝐛𝐨𝐥𝐝 ｆｕｌｌ") == {"latin": 1.0}
    assert script_share("カラオケー ﾊ") == {"katakana": 1.0}
    assert script_share("12 + 3!") == {}


@given(st.text())
def test_script_shares_sum_to_one(text: str) -> None:
    shares = script_share(text)
    assert not shares or abs(sum(shares.values()) - 1) < 1e-9
    assert bool(shares) == any(char.isalpha() for char in text)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
