"""The ways in which ``instructions`` is known to be wrong, each with an example.

Most are the public scorer's own, kept so that figures compare; ``stricter`` mends those that say so.
"""

from __future__ import annotations

from assay.verify.base import KnownError

KNOWN_ERRORS = (
    KnownError(
        "without stricter, a keyword counts inside another word or a comment",
        {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["rock"]}]},
        "Rockets fly.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, a character of no width hides a forbidden word",
        {
            "instruction_id_list": ["keywords:forbidden_words"],
            "kwargs": [{"forbidden_words": ["rock"]}],
        },
        "A ro\u200bck.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, a text without words is in every language",
        {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "de"}]},
        "1 2 3",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "a short text is often taken for another language, above all one in capitals",
        {"instruction_id_list": ["change_case:english_capital"], "kwargs": [{}]},
        "GOOD MORNING",
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "one sentence in another language goes unnoticed in a long text",
        {"instruction_id_list": ["change_case:english_lowercase"], "kwargs": [{}]},
        "the fog lifted slowly from the old mill pond and the heron flew away over the fields. guten tag.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "as for the public scorer, a sentence ends behind abbreviations such as etc. and e.g.",
        {
            "instruction_id_list": ["length_constraints:number_sentences"],
            "kwargs": [{"num_sentences": 2, "relation": "less than"}],
        },
        "Bring boots, coats, etc. and a map.",
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "without stricter, underscores are words",
        {
            "instruction_id_list": ["length_constraints:number_words"],
            "kwargs": [{"num_words": 2, "relation": "at least"}],
        },
        "___ ___",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "words are not counted in scripts without spaces: a run of characters is one word",
        {
            "instruction_id_list": ["length_constraints:number_words"],
            "kwargs": [{"num_words": 4, "relation": "at least"}],
        },
        "今天早上天气很好",
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "without stricter, an empty pair of brackets is a placeholder",
        {
            "instruction_id_list": ["detectable_content:number_placeholders"],
            "kwargs": [{"num_placeholders": 2}],
        },
        "[] [ ]",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, a postscript may be mentioned anywhere",
        {
            "instruction_id_list": ["detectable_content:postscript"],
            "kwargs": [{"postscript_marker": "P.S."}],
        },
        "No P.S. from me.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, a line that starts with a dash is a bullet, a divider too",
        {
            "instruction_id_list": ["detectable_format:number_bullet_lists"],
            "kwargs": [{"num_bullets": 2}],
        },
        "-\n---",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "bullets are - and * only",
        {
            "instruction_id_list": ["detectable_format:number_bullet_lists"],
            "kwargs": [{"num_bullets": 2}],
        },
        "• a coat\n• a map",
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "without stricter, several of the options may be given at once",
        {"instruction_id_list": ["detectable_format:constrained_response"], "kwargs": [{}]},
        "My answer is yes. My answer is no.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, any two asterisks highlight what stands between",
        {
            "instruction_id_list": ["detectable_format:number_highlighted_sections"],
            "kwargs": [{"num_highlights": 1}],
        },
        "2 * 3 * 4",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, sections may be empty",
        {
            "instruction_id_list": ["detectable_format:multiple_sections"],
            "kwargs": [{"section_spliter": "SECTION", "num_sections": 2}],
        },
        "SECTION 1 SECTION 2",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, a bare number or string is JSON",
        {"instruction_id_list": ["detectable_format:json_format"], "kwargs": [{}]},
        "5",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, a title needs no word",
        {"instruction_id_list": ["detectable_format:title"], "kwargs": [{}]},
        "<<.>>",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "two responses that say the same in other words are two",
        {"instruction_id_list": ["combination:two_responses"], "kwargs": [{}]},
        "A heron.\n******\nA heron!",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, repeating the prompt without an answer will do, in any case of letters",
        {
            "instruction_id_list": ["combination:repeat_prompt"],
            "kwargs": [{"prompt_to_repeat": "Say hi."}],
        },
        "SAY HI.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "curly quotation marks do not count",
        {"instruction_id_list": ["startend:quotation"], "kwargs": [{}]},
        "“The pond froze.”",
        says="failed",
        should_say="passed",
    ),
    KnownError(
        "without stricter, I and A are words in capitals",
        {
            "instruction_id_list": ["change_case:capital_word_frequency"],
            "kwargs": [{"capital_frequency": 2, "capital_relation": "at least"}],
        },
        "I saw A heron.",
        says="passed",
        should_say="failed",
    ),
    KnownError(
        "without stricter, commas of other scripts are no commas",
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        "The fog lifted， slowly.",
        says="passed",
        should_say="failed",
    ),
)
