"""Language consistency: twenty languages told apart, what does not count, and how it is fooled no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat, ThinkMode
from assay.verify.base import Part
from assay.verify.style.language import LANGUAGE, judge_language

pytest.importorskip("langdetect")

SAMPLES = {
    "en": "We need the value of x such that 2x + 3 = 7. First, subtract 3 from both sides. Then divide by 2.",
    "de": "Wir suchen den Wert von x, sodass 2x + 3 = 7 gilt. Zuerst ziehen wir 3 ab. Dann teilen wir durch 2.",
    "fr": "Nous cherchons la valeur de x telle que 2x + 3 = 7. On soustrait 3 des deux côtés. Puis on divise par 2.",
    "es": "Buscamos el valor de x tal que 2x + 3 = 7. Primero restamos 3 en los dos lados. Luego dividimos por 2.",
    "it": "Cerchiamo il valore di x tale che 2x + 3 = 7. Prima sottraiamo 3 da entrambi i lati. Poi dividiamo per 2.",
    "pt": "Procuramos o valor de x tal que 2x + 3 = 7. Primeiro subtraímos 3 dos dois lados. Depois dividimos por 2.",
    "nl": "We zoeken de waarde van x zodat 2x + 3 = 7. Eerst trekken we 3 af van beide kanten. Daarna delen we door 2.",
    "pl": "Szukamy wartości x, dla której 2x + 3 = 7. Najpierw odejmujemy 3 od obu stron. Potem dzielimy przez 2.",
    "sv": "Vi söker värdet på x så att 2x + 3 = 7. Först drar vi bort 3 från båda sidor. Sedan delar vi med 2.",
    "tr": "2x + 3 = 7 olacak şekilde x değerini arıyoruz. Önce her iki taraftan 3 çıkaralım. Sonra ikiye bölelim.",
    "vi": "Ta cần tìm giá trị của x sao cho 2x + 3 = 7. Đầu tiên trừ 3 ở cả hai vế. Sau đó chia cho 2.",
    "ru": "Найдём значение x, при котором 2x + 3 = 7. Сначала вычтем 3 из обеих частей. Затем разделим на 2.",
    "uk": "Знайдемо значення x, за якого 2x + 3 = 7. Спочатку віднімемо 3 від обох частин. Потім поділимо на 2.",
    "zh": "我们要找到满足 2x + 3 = 7 的 x 的值。首先两边同时减去 3。然后除以 2。",
    "ja": "2x + 3 = 7 となる x の値を求めます。まず両辺から 3 を引きます。次に 2 で割ります。",
    "ko": "2x + 3 = 7을 만족하는 x의 값을 찾습니다. 먼저 양변에서 3을 뺍니다. 그런 다음 2로 나눕니다.",
    "ar": "نبحث عن قيمة س بحيث 2x + 3 = 7. أولا نطرح 3 من الطرفين. ثم نقسم على 2.",
    "hi": "हमें x का मान ज्ञात करना है ताकि 2x + 3 = 7 हो। पहले दोनों पक्षों से 3 घटाएँ। फिर 2 से भाग दें।",
    "el": "Ψάχνουμε την τιμή του x ώστε 2x + 3 = 7. Πρώτα αφαιρούμε 3 και από τις δύο πλευρές. Μετά διαιρούμε με 2.",
    "th": "เราหาค่าของ x ที่ทำให้ 2x + 3 = 7 ก่อนอื่นลบ 3 ทั้งสองข้าง จากนั้นหารด้วย 2",
}


def judge(text: str, mode: ThinkMode = "free", **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat(mode))
    return judge_language(Problem("p", "q", spec), completion)


@pytest.mark.parametrize("target", SAMPLES)
def test_every_language_is_told_from_every_other(target: str) -> None:
    for code, text in SAMPLES.items():
        part = judge(text, target=target)
        assert part.passed is (code == target), (code, part.detail)
        assert part.value is not None
        assert part.value >= 0.9 if code == target else part.value <= 0.5


@pytest.mark.parametrize("mode", ["free", "off"])
@pytest.mark.parametrize("tag", ["think", "THINK"])
def test_the_reasoning_is_read_however_its_tags_are_spelled(mode: ThinkMode, tag: str) -> None:
    text = f"<{tag}>{SAMPLES['de'] * 2}</{tag}>{SAMPLES['en'] * 9}"
    assert judge(text, mode, target="de").value == 1.0
    assert judge(text, mode, target="de", part="answer").value == 0.0


def test_the_share_is_of_words() -> None:
    mixed = judge(f"{SAMPLES['en']}\n{SAMPLES['zh']}", target="en")
    count = {code: judge(SAMPLES[code], target=code).components["words"] for code in ("en", "zh")}
    assert mixed.value == pytest.approx(count["en"] / (count["en"] + count["zh"]))


def test_variants_and_case_of_the_target() -> None:
    assert judge(SAMPLES["zh"], target="ZH").passed
    assert judge(SAMPLES["zh"], target="zh-cn").passed
    assert judge(SAMPLES["en"], target="EN").passed


@pytest.mark.parametrize(
    "aside",
    [
        "```\nfür wert in liste: summe und mehr\n```",
        "`wert für summe`",
        "$x_{wert} + y_{summe}$",
        r"\[ \frac{a}{b} \]",
        "https://de.wikipedia.org/wiki/Wert_und_Summe",
        "3.14159 and 2.71828"[:7],
        "<answer>",
    ],
)
def test_asides_do_not_count_as_language(aside: str) -> None:
    with_it, without = (
        judge(f"{SAMPLES['en']}\n{aside}", target="en"),
        judge(SAMPLES["en"], target="en"),
    )
    assert with_it.components == without.components
    assert with_it.value == without.value == 1.0


def test_foreign_scripts_count_wherever_they_stand() -> None:
    for aside in ("```\n我们先相加\n```", "`我们先相加`", "$我们先相加$", r"$\text{我们先相加}$"):
        part = judge(f"{SAMPLES['en']}\n{aside}", target="en")
        assert part.value is not None
        assert part.value < 0.9


def test_the_option_part_chooses_the_text_that_is_read() -> None:
    text = f"<think>{SAMPLES['en']}</think>{SAMPLES['de']}"
    assert judge(text, target="en").value == 1.0
    assert judge(text, target="de", part="answer").value == 1.0
    whole = judge(text, target="en", part="all").value
    assert whole is not None
    assert 0.3 < whole < 0.8
    hidden = judge(f"<think>ok</think>{SAMPLES['de']}", target="en").value
    assert hidden is not None
    assert hidden < 0.1
    assert judge(SAMPLES["en"], "off", target="en").value == 1.0


def test_no_words_are_in_every_language() -> None:
    assert judge("42", target="de").value == 1.0
    assert judge("", target="ja").detail == "no words"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"target": "xx"},
        {"target": 3},
        {"target": "en", "part": "x"},
        {"target": "en", "threshold": 2},
    ],
)
def test_a_malformed_spec_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError) as caught:
        judge("a", **spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("known", LANGUAGE.known_errors, ids=lambda known: known.what)
def test_known_errors(known: Any) -> None:
    part = judge(known.completion, **known.spec)
    assert ("passed" if part.passed else "failed") == known.says != known.should_say


@given(st.text(), st.sampled_from(["en", "ja", "zh", "ru", "th"]))
def test_any_text_has_a_share(text: str, target: str) -> None:
    part = judge(text, target=target)
    assert part.value is not None
    assert 0.0 <= part.value <= 1.0
    assert judge(text, target=target) == part


def test_real_english_solutions_pass(shared_data: Path) -> None:
    lines = (shared_data / "verifier" / "gsm8k_responses.jsonl").read_text().splitlines()
    texts = [json.loads(line)["response"] for line in lines]
    failed = [text for text in texts if not judge(text, target="en").passed]
    assert len(texts) == 800
    assert len(failed) <= 4
    assert not any(judge(text, target="de").passed for text in texts if len(text) > 150)


def test_long_texts_take_linear_time() -> None:
    judge(SAMPLES["pl"], target="en")  # loads the detector
    texts = [
        "$",
        "`",
        "```\n",
        "\\(",
        "<a",
        "a1",
        "https://",
        "\\text{",
        "一",
        "é ",
        "~~~a\n",
        "word ",
        "x. ",
        "\\[ a ",
    ]
    for piece in texts:
        work = growth(lambda size, piece=piece: judge(piece * (size // len(piece)), target="en"), 80_000)  # fmt: skip
        assert work < LINEAR, piece


def test_a_missing_detector_is_told_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.verify.style import language as text_language

    text_language.check_language({"target": "en"})
    monkeypatch.setattr(text_language, "find_spec", lambda name: None)
    text_language.check_language({"target": "ja"})
    for options in ({"target": "en"}, {"target": "ru"}, {}):
        with pytest.raises(VerifierError, match=r"assay-rl\[language\]"):
            text_language.check_language(options)
