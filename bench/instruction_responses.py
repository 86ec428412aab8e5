"""Responses that follow IFEval's instructions, nearly follow them, or are odd, for a comparison."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

# A sentence or two a language: fodder for language detection, scripts and unusual marks.
BY_LANGUAGE = {
    "de": "Das Wetter war heute schön, deshalb gingen wir am Fluss entlang. Es war kalt!",
    "fr": "Il faisait beau ce matin, alors nous avons marché le long de la rivière « à pied ».",
    "ru": "Сегодня утром была хорошая погода, и мы пошли вдоль реки на рынок.",
    "hi": "आज सुबह मौसम अच्छा था इसलिए हम नदी के किनारे बाजार तक गए।",
    "zh": "今天早上天气很好\uff0c所以我们沿着河边走到了市场。",
    "ja": "今朝は天気が良かったので、川沿いを歩いて市場まで行きました。",
    "ar": "كان الطقس جميلا هذا الصباح، لذلك مشينا على طول النهر إلى السوق.",
    "pa": "ਅੱਜ ਸਵੇਰੇ ਮੌਸਮ ਚੰਗਾ ਸੀ ਇਸ ਲਈ ਅਸੀਂ ਨਦੀ ਦੇ ਨਾਲ ਬਾਜ਼ਾਰ ਗਏ।",
    "kn": "ಇಂದು ಬೆಳಿಗ್ಗೆ ಹವಾಮಾನ ಚೆನ್ನಾಗಿತ್ತು ಆದ್ದರಿಂದ ನಾವು ನದಿಯ ಉದ್ದಕ್ಕೂ ನಡೆದೆವು.",
    "ur": "آج صبح موسم اچھا تھا اس لیے ہم دریا کے ساتھ بازار گئے\u06d4",
    "en": "The weather was fine this morning, so we walked along the river.",
    "mr": "आज सकाळी हवामान छान होते म्हणून आम्ही नदीच्या काठाने बाजारात गेलो.",
    "fa": "امروز صبح هوا خوب بود و ما در کنار رودخانه تا بازار پیاده رفتیم.",
    "ne": "आज बिहान मौसम राम्रो थियो त्यसैले हामी नदीको किनारै किनार बजार गयौं।",
    "it": "Questa mattina il tempo era bello, quindi abbiamo camminato lungo il fiume.",
    "sw": "Hali ya hewa ilikuwa nzuri asubuhi hii, kwa hivyo tulitembea kando ya mto.",
}
FOREIGN = tuple(BY_LANGUAGE.values())
ODDITIES = (
    "",
    " \n\n ",
    "12 + 30 = 42",
    "***",
    "******",
    "** **",
    "* \n* \n* ",
    "- a\n-b\n--\n---\n* c\n** d",
    "<<>>",
    "<< >>",
    "<<<a>>>\n<<b\n>>",
    "[ ] [x] [a [b] c]\n[d\ne] []",
    '"',
    '""',
    '"quoted"',
    "“quoted”",
    "'single'",
    "```json\n```",
    "```json\n{}\n```",
    "{'a': 1}",
    '{"a": NaN}',
    "5",
    '```\n["a", 2]\n```\nDone.',
    "*a* **b** ***c*** * d * **e*\n*f\n*",
    "A, B.C D-E F/G I'M DON'T CAN'T CANNOT GONNA U.S. *BOLD* X1 (OK) \"NO\" IT'S A's",
    "Wait... What? Really?! Yes!!! No... the end. E.g. this. I.e. that, etc. Mr. Fox met Dr. No"
    " at 5 p.m. The end.",
    "P.S. I forgot. p. s. lower. P.P.S hi. P. P. S. and P.S",
    "para one\n\n\n\npara two\n\npara three",
    "one\n***\ntwo\n***\nthree",
    "***\none\n***\ntwo\n***",
    "one ***two*** three",
    "one\n******\ntwo",
    "one\n******\n******\ntwo",
    "******one******one******",
    "SECTION 1 a SECTION2 b Section 3 c SECTION X d Day 1: e PARAGRAPH 1 PARAGRAPH 2",
    "My answer is yes.",
    "my answer is no.",
    "**My answer is maybe.**",
    "My answer is yes. My answer is no.",
    "Zero\u200bwidth\u200cjoined words\u00a0and\u2003spaces, naïve café ǅ ß İ",
    "١٢٣ words_with_underscores ___ _a_ x²",
    "line\rreturn\x0bvertical\x85next\u2028separator",
)

LENGTHEN = "This sentence adds some words to the text. "


def followed(name: str, kwargs: Mapping[str, Any], text: str) -> str:
    """Return a text that is changed to follow one instruction, as far as possible."""
    return _FOLLOW[name](text, kwargs)


def near_misses(name: str, kwargs: Mapping[str, Any], text: str) -> list[str]:
    """Return texts that just miss, or just meet, the bound of one instruction."""
    found = [
        _FOLLOW[name](text, {**kwargs, key: value + step})
        for key, value in kwargs.items()
        if isinstance(value, int)
        for step in (-1, 1)
    ]
    for key, value in kwargs.items():
        if isinstance(value, str) and key != "relation":
            found += [text.replace(value, value.upper()), f"{text} {value}s", f"{value}{text}"]
        if isinstance(value, list):
            found += [f"{text} {word}." for word in value] + [
                f"{text} un{word}ly" for word in value
            ]
    return found


def disturbed(text: str, rng: random.Random) -> list[str]:
    """Return a text with typical slips of models: preambles, bold, wrong case, missing lines."""
    cut = rng.randrange(len(text) + 1)
    return [
        text,
        f"Sure, here it is:\n{text}",
        f"Sure!\n\n{text}\n\nI hope that this helps, really.",
        f"**{text}**",
        f"*{text}*\n",
        text.upper(),
        text.lower(),
        text[:cut],
        text[:cut] + ", " + text[cut:],
        text.replace(" ", "\u00a0", 3),
        text.replace(".", "...", 2),
        text.replace("\n", "\n\n"),
        text + "\n\n" + rng.choice(FOREIGN),
        text + "\n" + rng.choice(ODDITIES),
        f'"{text}"',
        "\n" + text + "\n",
    ]


def _words(text: str, kwargs: Mapping[str, Any]) -> str:
    wanted, have = kwargs["num_words"], len(re.findall(r"\w+", text))
    if kwargs["relation"] == "at least":
        return text + " " + " ".join(["word"] * (wanted - have))
    return " ".join(text.split()[: max(1, (wanted - 1) * 2 // 3)])


def _sentences(text: str, kwargs: Mapping[str, Any]) -> str:
    if kwargs["relation"] == "at least":
        return (
            text + " " + LENGTHEN * (kwargs["num_sentences"] - text.count(". ") - text.count("! "))
        )
    return (LENGTHEN * (kwargs["num_sentences"] - 1)).strip() or "none"


def _times(word: str, count: int, relation: str, text: str) -> str:
    if relation == "at least":
        return text + f" {word}" * max(0, count - text.lower().count(word.lower()))
    return re.sub(re.escape(word), "", text, flags=re.IGNORECASE) + f" {word}" * (count - 1)


def _sections(text: str, kwargs: Mapping[str, Any]) -> str:
    return "\n".join(
        f"{kwargs['section_spliter']} {i + 1}\n{text[:80]}" for i in range(kwargs["num_sections"])
    )


def _nth(text: str, kwargs: Mapping[str, Any]) -> str:
    paragraphs = [text.replace("\n", " ")[:200] or "text" for _ in range(kwargs["num_paragraphs"])]
    if 0 < kwargs["nth_paragraph"] <= len(paragraphs):
        paragraphs[kwargs["nth_paragraph"] - 1] = f"{kwargs['first_word'].title()}, {text[:50]}"
    return "\n\n".join(paragraphs)


_FOLLOW: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "keywords:existence": lambda t, k: t + " " + " ".join(k["keywords"]),
    "keywords:frequency": lambda t, k: _times(k["keyword"], k["frequency"], k["relation"], t),
    "keywords:forbidden_words": lambda t, k: re.sub(
        "|".join(map(re.escape, k["forbidden_words"])), "", t, flags=re.IGNORECASE
    ),
    "keywords:letter_frequency": lambda t, k: _times(
        k["letter"], k["let_frequency"], k["let_relation"], t
    ),
    "language:response_language": lambda t, k: BY_LANGUAGE.get(k["language"], t),
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_paragraphs": lambda t, k: "\n***\n".join(
        [t[:200] or "x"] * k["num_paragraphs"]
    ),
    "length_constraints:number_words": _words,
    "length_constraints:nth_paragraph_first_word": _nth,
    "detectable_content:number_placeholders": lambda t, k: t + " [name]" * k["num_placeholders"],
    "detectable_content:postscript": lambda t, k: f"{t}\n\n{k['postscript_marker']} That is all.",
    "detectable_format:number_bullet_lists": lambda t, k: (
        re.sub(r"(?m)^\s*[*-]", "", t)
        + "\n* item" * (k["num_bullets"] // 2)
        + "\n- item" * (k["num_bullets"] - k["num_bullets"] // 2)
    ),
    "detectable_format:constrained_response": lambda t, k: "My answer is maybe.",
    "detectable_format:number_highlighted_sections": lambda t, k: (
        t
        + "\n*one part*" * (k["num_highlights"] // 2)
        + "\n**another**" * (k["num_highlights"] - k["num_highlights"] // 2)
    ),
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": lambda t, k: f"```json\n{json.dumps({'text': t})}\n```",
    "detectable_format:title": lambda t, k: f"<<a title>>\n{t}",
    "combination:two_responses": lambda t, k: f"{t}\n******\nNo. {t}",
    "combination:repeat_prompt": lambda t, k: f"{k['prompt_to_repeat']}\n\n{t}",
    "startend:end_checker": lambda t, k: f"{t}\n{k['end_phrase']}",
    "startend:quotation": lambda t, k: f'"{t}"',
    "change_case:capital_word_frequency": lambda t, k: (
        t.lower() + " LOUD" * (k["capital_frequency"] - (k["capital_relation"] == "less than"))
    ),
    "change_case:english_capital": lambda t, k: t.upper(),
    "change_case:english_lowercase": lambda t, k: t.lower(),
    "punctuation:no_comma": lambda t, k: t.replace(",", ""),
}

# Arguments beyond those of the public prompts, for the types that these hold seldom or never.
INVENTED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("detectable_format:constrained_response", {}),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "However"},
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "weather"},
    ),
    *(
        ("language:response_language", {"language": code})
        for code in ("de", "fr", "ru", "hi", "ar", "ja", "en", "ur")
    ),
    *(("detectable_content:number_placeholders", {"num_placeholders": n}) for n in (1, 2, 3)),
    *(
        ("detectable_content:postscript", {"postscript_marker": mark})
        for mark in ("P.S.", "P.P.S", "Note:")
    ),
    *(
        ("detectable_format:multiple_sections", {"section_spliter": word, "num_sections": n})
        for word in ("SECTION", "Section", "Day")
        for n in (1, 3)
    ),
    *(
        (
            "change_case:capital_word_frequency",
            {"capital_frequency": n, "capital_relation": relation},
        )
        for n in (1, 4, 12)
        for relation in ("less than", "at least")
    ),
    *(
        (
            "keywords:letter_frequency",
            {"letter": letter, "let_frequency": n, "let_relation": relation},
        )
        for letter in "aQz"
        for n in (1, 40)
        for relation in ("less than", "at least")
    ),
    *(
        ("length_constraints:number_sentences", {"num_sentences": n, "relation": relation})
        for n in (1, 2, 3, 5, 8, 13, 21)
        for relation in ("less than", "at least")
    ),
    *(
        ("length_constraints:number_words", {"num_words": n, "relation": relation})
        for n in (1, 10, 60, 150)
        for relation in ("less than", "at least")
    ),
    *(
        (name, {})
        for name in (
            "detectable_format:json_format",
            "detectable_format:title",
            "combination:two_responses",
            "startend:quotation",
            "punctuation:no_comma",
            "change_case:english_capital",
            "change_case:english_lowercase",
        )
    ),
)
