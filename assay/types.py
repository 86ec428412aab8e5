"""The nouns of a run: problems, prompts, completions, groups, verdicts.

Plain values: picklable, without torch, the same on one machine and on many.

Shape legend, for every array and tensor name in Assay (joined in axis order, as in ``logits_TV``):

    T  packed tokens      R  rows (completions)    P  prompts (groups)     G  group size
    L  padded length      V  vocabulary            D  model width          N  layers
    S  engine slots       K  key/value extent      H  attention heads
    M  places that a reward model scores           C  labels of its head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
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
"""How the result begins that a tool call gets if no parser reads it."""
FACTS_FILE = "reward_model.json"
"""What lies beside a saved reward model: how text is to be read to it, and what it is worth."""
PLAIN_TEMPLATE = "{prompt}\n{completion}"
"""How a reward model reads a problem and its completion where nothing else is said."""


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    """How a prompt asks for reasoning, and so how its completion splits into reasoning and answer.

    mode: ``off``: there is no think block. ``free``: the model opens and closes the block itself.
    ``opened``: the prompt already ends inside an open block. ``empty``: the prompt already holds an
    intentionally empty block (no-think mode), so that the completion is all answer.
    """

    mode: ThinkMode = "off"
    open_tag: str = "<think>"
    close_tag: str = "</think>"

    @property
    def thinks(self) -> bool:
        """Whether the policy is to reason in a block."""
        return self.mode in ("free", "opened")

    @property
    def row_keys(self) -> dict[str, Any]:
        """The keys that say in a row how its completion is split; usual tags are not named."""
        tags = [self.open_tag, self.close_tag]
        usual = tags == ["<think>", "</think>"]
        return {"think": self.mode, **({} if usual else {"think_tags": tags})}

    def answer_span(self, text: str) -> tuple[int, int] | None:
        """Return where the answer begins and ends in a completion's text; None: all is reasoning.

        `assay.think` says what an answer is. It is the same in every mode, but that ``opened``
        begins inside a block.
        """
        return answer_span(text, self.open_tag, self.close_tag, opened=self.mode == "opened")

    def open_block(self, text: str) -> tuple[bool, tuple[int, int]]:
        """Return whether a text ends while it still reasons, and the span of its last tag."""
        return open_block(text, self.open_tag, self.close_tag, opened=self.mode == "opened")

    def split(self, text: str) -> tuple[str, str]:
        """Return (reasoning, answer) of a completion's text; the tags belong to neither."""
        start, end = self.answer_span(text) or (len(text), len(text))
        reasoning = without_tags(text[:start] + text[end:], self.open_tag, self.close_tag)
        return reasoning.strip(), text[start:end]


@dataclass(frozen=True, slots=True)
class Problem:
    """One row: what the policy is asked, and what its verifier needs to judge the reply.

    spec: answers, tests and the like; never visible to the policy. draw: how many times a
    curriculum has handed the problem out before; with the id it names the group.
    verifier: an expression such as ``math`` or ``math*1.0 + think_format*0.1``; None: the config's.
    source: where the row stands, as ``file.jsonl:12``. think: the mode of its `ThinkFormat`.
    effort: a name of ``sampling.efforts``; None: the config's, as for think.
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
        """The name of the group that this draw of the problem gives rise to."""
        return f"{self.id}#{self.draw}"

    @property
    def place(self) -> str:
        """Where the row stands, else its name."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """A chain of sampled and given tokens, in any order, with what is known of its sampling.

    id: ``problem#draw/sibling``. tokens [L]: with the end-of-sequence token. behavior_logprobs [L]:
    under the distribution that was sampled from (temperature and truncation included).
    sampled [L]: False where the policy did not choose the token (it is context only: never in a
    loss, a ratio or a KL). model_logprobs [L]: under the untempered model; None where the generator
    does not give them. policy_version: the oldest that sampled one of its tokens.
    num_think_tokens: how many leading tokens belong to the think block. token_versions [L]: the
    policy version of each token; None where all are the same. turn_ends: of a conversation, the
    index behind the last token of each turn. A turn is what was given and what the policy said.
    said: of a conversation, where in the text that which the policy said in each turn begins and
    ends; empty: the text is one turn.
    """

    id: str
    text: str
    tokens: Tokens
    behavior_logprobs: Floats
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
        """Return a completion made of a text; of its tokens only the number is known."""
        return cls(
            id=id,
            text=text,
            finish_reason=finish_reason,
            tokens=np.zeros(num_tokens, np.int32),
            behavior_logprobs=np.zeros(0, np.float32),
            sampled=np.zeros(0, np.bool_),
            think=think or ThinkFormat(),
            said=said,
        )

    @classmethod
    def given(cls, id: str, tokens: Tokens, text: str = "") -> Completion:
        """Return tokens that nobody sampled here, all of which are learned from."""
        size = len(tokens)
        return cls(id, text, tokens, np.zeros(size, np.float32), sampled=np.ones(size, np.bool_))

    @property
    def num_turns(self) -> int:
        """How many turns it spans."""
        return max(1, len(self.turn_ends))

    @property
    def num_given(self) -> int:
        """How many of its tokens the policy did not choose."""
        return int(np.count_nonzero(~self.sampled))

    @property
    def truncated(self) -> bool:
        """Whether the completion ran into its limit before it ended."""
        return self.finish_reason == "length"

    @property
    def turn_texts(self) -> tuple[str, ...]:
        """What the policy said in each turn: its calls of tools, and at last its answer."""
        return tuple(self.text[start:end] for start, end in self.said) or (self.text,)

    @property
    def _thought_turns(self) -> list[str]:
        """The turns, each with the tag that was given to open its think block, if one was."""
        tag = self.think.open_tag
        given = (self.text[:start].rstrip().endswith(tag) for start, _ in self.said or ((0, 0),))
        return [tag * put + said for put, said in zip(given, self.turn_texts, strict=True)]

    @property
    def reasoning_text(self) -> str:
        """What the policy said inside think blocks, or an empty string."""
        return self.think.split("".join(self._thought_turns))[0]

    @property
    def answer_text(self) -> str:
        """The last turn outside think blocks: all that a verifier of answers may read."""
        *before, newest = self._thought_turns
        text, last = "".join([*before, newest]), len(newest)
        start, end = self.think.answer_span(text) or (len(text), len(text))
        return text[max(start, len(text) - last) : end]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The completions of one prompt: siblings, never separated."""

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
    """What a verifier says of one completion.

    score: correctness in [0, 1]; None exactly when status is ``not_judged``. components: each part
    under its own name, not bounded. reward: the weighted sum that the optimizer sees; None when not
    judged. A verdict that was not judged is never a 0: it enters no baseline and has no gradient.
    step_weight: what the score of a step counts in the reward: the weight of the first term.
    verifier: ``name@version``. seconds: time spent judging.
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

    def __post_init__(self) -> None:
        if (self.status == "not_judged") != (self.score is None):
            raise ValueError(f"status {self.status!r} does not go with score {self.score!r}")
        if (self.status == "not_judged") != (self.reason is not None):
            raise ValueError(f"status {self.status!r} does not go with reason {self.reason!r}")
        if self.status == "not_judged" and self.reward is not None:
            raise ValueError(f"reward {self.reward!r} of a completion that was not judged")
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score {self.score!r} is outside [0, 1]")

    @property
    def judged(self) -> bool:
        """Whether there is a judgement at all."""
        return self.status != "not_judged"

    @property
    def correct(self) -> bool:
        """Whether the completion passed."""
        return self.status == "passed"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without the scores of steps."""
        names = ("status", "reason", "extracted", "detail", "verifier", "seconds")
        parts = {"score": self.score, "reward": self.reward, "components": dict(self.components)}
        return parts | {name: getattr(self, name) for name in names}

    @classmethod
    def of_score(cls, score: float, verifier: str, **rest: Any) -> Verdict:
        """Return a judgement: passed when score is 1, failed below."""
        rest.setdefault("reward", score)
        status: Status = "passed" if score >= 1.0 else "failed"
        return cls(score=score, status=status, verifier=verifier, **rest)

    @classmethod
    def not_judged(cls, reason: NotJudgedReason, verifier: str, **rest: Any) -> Verdict:
        """Return the verdict of a checker that could not do its work."""
        return cls(score=None, status="not_judged", verifier=verifier, reason=reason, **rest)
