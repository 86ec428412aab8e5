"""Verifiers ``reward_model`` and ``process_reward_model``, which call an injected scorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

from assay.host.fields import Field, choice, is_number, one_of, option, whole
from assay.types import PLAIN_TEMPLATE, Completion, Problem
from assay.verify.base import Part, Verifier
from assay.verify.learned import scorers

Pairs = Sequence[tuple[Problem, Completion]]
TOO_LONG = ("cut_prompt", "cut_completion", "not_judged")
FORMATS = ("chat", "plain")
READS = ("all", "answer")
DTYPES = ("float32", "bfloat16")
# The default step_tag, good_token and bad_token are those of the Math-Shepherd checkpoint.
STEP_TAG = "\u043a\u0438"


def is_text(value: Any) -> bool:
    """Return whether a value is a nonempty text."""
    return isinstance(value, str) and bool(value)


def _is_path(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_text, cast("list[Any]", value)))
    return is_text(value)


def is_ends(value: Any) -> bool:
    """Return whether a value is a nonempty list of increasing whole numbers."""
    if not isinstance(value, list | tuple) or not value:
        return False
    ends = cast("list[Any]", value)
    # isinstance would accept True and False, which are ints in Python.
    return all(type(end) is int and end >= 0 for end in ends) and all(
        a < b for a, b in pairwise(ends)
    )


def is_normalize(value: Any) -> bool:
    """Return whether a value is a file name, or a table {mean, std} of numbers or of lists of
    numbers."""
    if not isinstance(value, Mapping):
        return is_text(value)
    table = cast("Mapping[str, Any]", value)
    return set(table) == {"mean", "std"} and all(
        all(map(is_number, cast("list[Any]", each))) if isinstance(each, list) else is_number(each)
        for each in table.values()
    )


# All options below are read from the configuration only: a row must not choose its own judge.
PATH = option(
    "path",
    "a run of [reward_model] (or its checkpoint, as RUN@best), a folder in Hugging Face layout, a "
    "hub name, or a list of them; a reward_model.json there sets options that the "
    "configuration does not set",
    None,
    _is_path,
)
COMMON_FIELDS = (
    PATH,
    option("device", "cpu, cuda or cuda:N; null: CUDA if there is a device", None, is_text),
    option(
        "dtype",
        f"{', '.join(DTYPES)}; null: bfloat16 on CUDA, float32 elsewhere",
        None,
        one_of(*DTYPES),
    ),
    option("max_tokens", "a whole number above 0; null: the model's maximum", None, whole(1)),
    option(
        "batch_tokens",
        "tokens of one padded batch; null: 16384 on CUDA, 4096 elsewhere",
        None,
        whole(1),
    ),
    option(
        "format",
        f"{', '.join(FORMATS)}; null: chat if the tokenizer has a template",
        None,
        one_of(*FORMATS),
    ),
    option(
        "plain_template",
        "text with {prompt} and {completion}, for format plain",
        PLAIN_TEMPLATE,
        lambda value: is_text(value) and "{completion}" in value,
    ),
    option("reads", "all, or answer: the text outside the think block", "all", one_of(*READS)),
    choice("too_long", *TOO_LONG, from_row=False),
    option("threshold", "a number: the lowest probability that passes", 0.5, is_number),
)
REWARD_MODEL_FIELDS = (
    *COMMON_FIELDS,
    option(
        "head",
        "scalar: one logit; binary: an outcome head of two labels",
        "scalar",
        one_of("scalar", "binary"),
    ),
    option(
        "positive", "0 or 1: the label for a correct completion", 1, lambda value: value in (0, 1)
    ),
    option(
        "aggregate",
        "mean, min or mean_minus_std over the members of an ensemble",
        "mean",
        one_of("mean", "min", "mean_minus_std"),
    ),
    option("k", "the number of standard deviations that mean_minus_std subtracts", 1.0, is_number),
    option(
        "normalize",
        "{mean, std} of the scores, two numbers or two lists with a number for each member; or a "
        "JSON Lines file of rows with prompt and completion, on which they are measured",
        None,
        is_normalize,
    ),
    option(
        "squash",
        "none, or sigmoid: the reward is in (0, 1) too, as correctness always is",
        "none",
        one_of("none", "sigmoid"),
    ),
)
PROCESS_REWARD_MODEL_FIELDS = (
    *COMMON_FIELDS,
    choice("style", "causal", "classifier", from_row=False),
    option("split", "newline, blank_line, or the text that ends a step", "newline", is_text),
    option("step_tag", "text after each step, scored at its last token", STEP_TAG, is_text),
    option(
        "step_join",
        "text between a tag and the next step",
        "\n",
        lambda value: isinstance(value, str),
    ),
    option("good_token", "text of one token, for style causal", "+", is_text),
    option("bad_token", "text of one token, for style causal", "-", is_text),
    option("positive", "0 or 1: the label for a correct step", 1, lambda value: value in (0, 1)),
    choice("reduce", "min", "product", "last", "mean", from_row=False),
    option(
        "policy_tokenizer",
        "a folder or hub name; null: the checkpoint's own tokenizer is tried",
        None,
        is_text,
    ),
    Field(
        "step_ends",
        "rising whole numbers: the token at which each step ends (the character, for a text "
        "without tokens)",
        check=is_ends,
    ),
)


def _judge(name: str, pairs: Pairs) -> list[Part]:
    return scorers.open_scorer(name, pairs[0][0].spec).judge(pairs) if pairs else []


def _evidence(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    return scorers.open_scorer(name, options).evidence()


def judge_reward_model(pairs: Pairs) -> list[Part]:
    """Return the learned score of each completion.

    All options of the reward verifiers come from the configuration.

    With ``head = "scalar"`` the score is the model's single logit, which is unbounded. With ``head
    = "binary"`` the score is the probability of the label ``positive``: a softmax over two labels,
    or the sigmoid of one logit. The scores of an ensemble's members are normalized, then
    aggregated, then ``squash`` is applied. A text with more than ``max_tokens`` tokens is cut as
    the option ``too_long`` allows. A text that still does not fit after the cut is not judged.
    """
    return _judge("reward_model", pairs)


def check_reward_model(options: Mapping[str, Any]) -> None:
    """Load the checkpoints. Raises VerifierError if the options do not fit the checkpoints."""
    scorers.open_scorer("reward_model", options).load()


REWARD_MODEL = Verifier(
    name="reward_model",
    version=1,
    judge=judge_reward_model,
    takes="batch",
    executor="device",
    domain="the score of a completion by a learned reward model",
    fields=REWARD_MODEL_FIELDS,
    accepts="any text that fits the reward model's maximum length; control tokens in the text are "
    "read as letters",
    partial_credit="the score itself",
    # A policy learns to exploit a learned score, so the default weight as a later term is small.
    weight=0.1,
    bounds=None,
    packages=("transformers",),
    check_options=check_reward_model,
    # `scorers.inject` has run before this import, so the content hash covers the scorers' source.
    modules=scorers.modules,
    evidence=partial(_evidence, "reward_model"),
)


def judge_process_reward_model(pairs: Pairs) -> list[Part]:
    """Return the probability that each step is correct, and one value that all steps are reduced
    to.

    Each step is followed by ``step_tag``, and the step's score is read at the tag's last token.
    With ``style = "causal"`` a language model scores by a softmax over ``good_token`` and
    ``bad_token`` (Math-Shepherd, arXiv:2312.08935). With ``style = "classifier"``, a token
    classification head with one logit or two labels gives the scores. Steps are split at ``split``
    or at the row's ``step_ends``. `StepScore.end` is the index of the token at which the step ends.
    For a completion without tokens, `StepScore.end` is the index of a character. A completion
    without steps fails. To fit ``max_tokens``, only the prompt is cut, never the completion. A text
    that still does not fit after the cut is not judged.
    """
    return _judge("process_reward_model", pairs)


def check_process_reward_model(options: Mapping[str, Any]) -> None:
    """Load the checkpoint. Raises VerifierError if the options do not fit the checkpoint."""
    scorers.open_scorer("process_reward_model", options).load()


PROCESS_REWARD_MODEL = Verifier(
    name="process_reward_model",
    version=2,
    judge=judge_process_reward_model,
    takes="batch",
    executor="device",
    domain="the score of each step by a learned process reward model",
    fields=PROCESS_REWARD_MODEL_FIELDS,
    accepts="any text that fits the checkpoint's maximum length; control tokens in the text are "
    "read as letters",
    weight=0.1,
    partial_credit="the steps' probabilities, reduced by min, product, last or mean",
    packages=("transformers",),
    check_options=check_process_reward_model,
    modules=scorers.modules,
    evidence=partial(_evidence, "process_reward_model"),
)
