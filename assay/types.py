"""The types of a run: problems, prompts, completions, groups and verdicts.

The types are plain values without torch. Processes and machines exchange these values as pickles.

Shape legend, for every array and tensor name in Assay (joined in axis order, as in ``logits_TV``):

    T  packed tokens      R  rows (completions)    P  prompts (groups)     G  group size
    L  padded length      V  vocabulary            D  model width          N  layers
    S  engine slots       K  key/value extent      H  attention heads
    M  scored positions of a reward model         C  labels of the reward model's head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from assay.think import answer_span, open_block, without_tags

Tokens: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]
Message: TypeAlias = Mapping[str, str]

FinishReason = Literal["eos", "stop_string", "length"]
Status = Literal["passed", "failed", "not_judged"]
NotJudgedReason = Literal["timeout", "error", "unavailable"]
ThinkMode = Literal["off", "free", "opened", "empty"]

UNREAD_CALL = "error: unreadable call: "
"""Prefix of the result of a tool call that no parser could read."""
FACTS_FILE = "reward_model.json"
"""File beside a saved reward model: its input format and its evaluation."""
PLAIN_TEMPLATE = "{prompt}\n{completion}"
"""Default input format of a reward model without a chat template."""


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    """How completions split into reasoning and answer: the mode of think blocks and their tags.

    mode: ``off``: no think block. ``free``: the model opens and closes the block itself.
    ``opened``: the prompt already ends inside an open block. ``empty``: the prompt already holds an
    intentionally empty block (no-think mode), so that the completion is all answer.
    """

    mode: ThinkMode = "off"
    open_tag: str = "<think>"
    close_tag: str = "</think>"

    @property
    def thinks(self) -> bool:
        """Whether the policy reasons in a think block."""
        return self.mode in ("free", "opened")

    @property
    def row_keys(self) -> dict[str, Any]:
        """Keys of a data row that describe this format; default tags are omitted."""
        tags = [self.open_tag, self.close_tag]
        usual = tags == ["<think>", "</think>"]
        return {"think": self.mode, **({} if usual else {"think_tags": tags})}

    def answer_span(self, text: str) -> tuple[int, int] | None:
        """Return the character span of the answer in a completion's text, or None without an
        answer.

        `assay.think` defines the answer. The answer is defined equally in every mode, except that a
        completion in the mode ``opened`` begins inside a block.
        """
        return answer_span(text, self.open_tag, self.close_tag, opened=self.mode == "opened")

    def open_block(self, text: str) -> tuple[bool, tuple[int, int]]:
        """Return whether a text ends inside a think block, and the span of its last tag."""
        return open_block(text, self.open_tag, self.close_tag, opened=self.mode == "opened")

    def split(self, text: str) -> tuple[str, str]:
        """Split a completion's text into (reasoning, answer), without the tags."""
        start, end = self.answer_span(text) or (len(text), len(text))
        reasoning = without_tags(text[:start] + text[end:], self.open_tag, self.close_tag)
        return reasoning.strip(), text[start:end]


@dataclass(frozen=True, slots=True)
class Problem:
    """A data row: the prompt for the policy and the spec for the verifier.

    spec: for example the answer or the tests; never visible to the policy. draw: how often the
    curriculum has drawn the problem before; (id, draw) identifies the group. verifier: an
    expression such as ``math`` or ``math*1.0 + think_format*0.1``. source: file and line of the
    row, as ``file.jsonl:12``. think: mode of the `ThinkFormat`. effort: a name in
    ``sampling.efforts``. For verifier, think and effort, None selects the configured value.
    """

    id: str
    prompt: str | tuple[Message, ...]
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    verifier: str | None = None
    tags: tuple[str, ...] = ()
    source: str = ""
    draw: int = 0
    think: ThinkMode | None = None
    effort: str | None = None

    @property
    def group_id(self) -> str:
        """Identifier of the group that this draw of the problem produces."""
        return f"{self.id}#{self.draw}"

    @property
    def place(self) -> str:
        """File and line of the row, or else the problem's id."""
        return self.source or self.id

    @property
    def question(self) -> str:
        """The prompt as plain text: the last user message of a chat, or the text itself."""
        if isinstance(self.prompt, str):
            return self.prompt
        for turn in reversed(self.prompt):
            if turn["role"] == "user":
                return turn["content"]
        return self.prompt[-1]["content"]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A problem as the policy sees it: text rendered through a template, and its tokens [L]."""

    text: str
    tokens: Tokens
    think: ThinkFormat = ThinkFormat()


# Values with arrays are compared by identity (eq=False): an array has no single truth value.
@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """A sequence of sampled and injected tokens, with log-probabilities and policy versions.

    id: ``problem#draw/sibling``. tokens [L]: token ids, including the end-of-sequence token.
    behavior_logprobs [L]: log-probabilities under the sampling distribution, with temperature and
    truncation. sampled [L]: False for injected tokens, which are context only: never in a loss, a
    ratio or a KL. model_logprobs [L]: log-probabilities under the model at temperature 1; None if
    the generator does not return them. policy_version: the oldest version that sampled one of the
    tokens. num_think_tokens: number of leading tokens in the think block. token_versions [L]:
    policy version of each token; None if all are equal. turn_ends: index after the last token of
    each turn; a turn is injected tokens followed by sampled tokens. said: character spans of the
    assistant turns in the text; empty for a single turn. failure: reason and detail if a server did
    not return the completion, which is then empty and not judged.
    """

    id: str
    text: str
    tokens: Tokens
    behavior_logprobs: Floats
    # All fields from here on are keyword-only, so that no array can take the position of another
    # array.
    _: KW_ONLY
    sampled: Mask
    model_logprobs: Floats | None = None
    finish_reason: FinishReason = "eos"
    policy_version: int = 0
    num_think_tokens: int = 0
    think: ThinkFormat = ThinkFormat()
    token_versions: Tokens | None = None
    turn_ends: tuple[int, ...] = ()
    said: tuple[tuple[int, int], ...] = ()
    failure: tuple[NotJudgedReason, str] | None = None

    @classmethod
    def from_text(
        cls,
        text: str,
        id: str = "completion",
        think: ThinkFormat | None = None,
        num_tokens: int = 0,
        finish_reason: FinishReason = "eos",
        said: tuple[tuple[int, int], ...] = (),
    ) -> Completion:
        """Create a completion from a text, for verifiers; its tokens are placeholders."""
        return cls(
            id=id,
            text=text,
            finish_reason=finish_reason,
            # A text's token ids are unknown here, but verifiers of length need the right number of
            # tokens.
            tokens=np.zeros(num_tokens, np.int32),
            behavior_logprobs=np.zeros(0, np.float32),
            sampled=np.zeros(0, np.bool_),
            think=think or ThinkFormat(),
            said=said,
        )

    @classmethod
    def failed(
        cls, id: str, reason: NotJudgedReason, detail: str, think: ThinkFormat | None = None
    ) -> Completion:
        """Create an empty, unjudged completion for a request that a server failed to answer."""
        return replace(cls.from_text("", id, think), failure=(reason, detail))

    @classmethod
    def from_tokens(cls, id: str, tokens: Tokens, text: str = "") -> Completion:
        """Create a completion from the tokens of a demonstration; every token is trained on."""
        size = len(tokens)
        return cls(id, text, tokens, np.zeros(size, np.float32), sampled=np.ones(size, np.bool_))

    @property
    def num_turns(self) -> int:
        """Number of turns; 1 for a completion without injected text."""
        return max(1, len(self.turn_ends))

    @property
    def num_injected(self) -> int:
        """Number of injected tokens."""
        return int(np.count_nonzero(~self.sampled))

    @property
    def truncated(self) -> bool:
        """Whether the completion reached its length limit before it ended."""
        return self.finish_reason == "length"

    @property
    def turn_texts(self) -> tuple[str, ...]:
        """Texts of the assistant turns: tool calls, then the final answer."""
        return tuple(self.text[start:end] for start, end in self.said) or (self.text,)

    @property
    def _thought_turns(self) -> list[str]:
        """Texts of the assistant turns, with the open tag where the prompt opened the block."""
        tag = self.think.open_tag
        given = (self.text[:start].rstrip().endswith(tag) for start, _ in self.said or ((0, 0),))
        return [tag * put + said for put, said in zip(given, self.turn_texts, strict=True)]

    @property
    def reasoning_text(self) -> str:
        """The text inside a completion's think blocks, or an empty string if there is no think
        block."""
        return self.think.split("".join(self._thought_turns))[0]

    @property
    def answer_text(self) -> str:
        """The last turn without its think blocks; verifiers of answers read only this text."""
        *before, newest = self._thought_turns
        # A think block may begin in an earlier turn, so all turns are parsed as one text.
        text, last = "".join([*before, newest]), len(newest)
        start, end = self.think.answer_span(text) or (len(text), len(text))
        return text[max(start, len(text) - last) : end]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The completions of one prompt, called siblings. A group is never split."""

    problem: Problem
    prompt: Prompt
    completions: tuple[Completion, ...]

    @property
    def id(self) -> str:
        """``problem#draw``."""
        return self.problem.group_id


@dataclass(frozen=True, slots=True)
class StepScore:
    """The score of one reasoning step, and the index of the completion token at which it ends."""

    score: float
    end: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's result for one completion.

    score: correctness in [0, 1]; None exactly when status is ``not_judged``. components: unbounded
    values by name. reward: the weighted sum that the optimizer maximizes; None when not judged. A
    completion that was not judged never gets reward 0: it enters no baseline and has no gradient.
    step_weight: weight of the step scores in the reward, equal to that of the expression's first
    term. verifier: ``name@version``. seconds: time spent judging. second: verdict of the second
    verifier of ``[audit]``, which is never part of the reward; None without one.
    """

    score: float | None
    status: Status
    verifier: str
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    step_scores: tuple[StepScore, ...] = ()
    step_weight: float = 1.0
    reason: NotJudgedReason | None = None
    extracted: str | None = None
    detail: str = ""
    seconds: float = 0.0
    second: Verdict | None = None

    def __post_init__(self) -> None:
        # ``status`` and ``score`` must agree;
        # otherwise a failed check could count as a wrong answer.
        if (self.status == "not_judged") != (self.score is None):
            raise ValueError(f"status {self.status!r} contradicts score {self.score!r}")
        if (self.status == "not_judged") != (self.reason is not None):
            raise ValueError(f"status {self.status!r} contradicts reason {self.reason!r}")
        if self.status == "not_judged" and self.reward is not None:
            raise ValueError(f"reward {self.reward!r} of a completion that was not judged")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score {self.score!r} is outside [0, 1]")

    @property
    def judged(self) -> bool:
        """Whether the completion was judged."""
        return self.status != "not_judged"

    @property
    def correct(self) -> bool:
        """Whether the completion passed."""
        return self.status == "passed"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, without step scores."""
        names = ("status", "reason", "extracted", "detail", "verifier", "seconds")
        parts = {"score": self.score, "reward": self.reward, "components": dict(self.components)}
        return parts | {name: getattr(self, name) for name in names}

    @classmethod
    def of_score(cls, score: float, verifier: str, **rest: Any) -> Verdict:
        """Create a verdict from a score: passed if the score is 1, else failed."""
        rest.setdefault("reward", score)
        status: Status = "passed" if score >= 1.0 else "failed"
        return cls(score=score, status=status, verifier=verifier, **rest)

    @classmethod
    def not_judged(cls, reason: NotJudgedReason, verifier: str, **rest: Any) -> Verdict:
        """Create the verdict of a checker that failed or timed out."""
        return cls(score=None, status="not_judged", verifier=verifier, reason=reason, **rest)
