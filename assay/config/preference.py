"""The preference stage: learning from pairs, or from completions marked good or bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.row import check_fields, section_of_row
from assay.config.section import (
    Count,
    Epochs,
    Natural,
    NonNegative,
    Positive,
    Section,
    Text,
)
from assay.config.toml_text import point_list
from assay.errors import ConfigError, message

RUN_PREFIX, FILE_PREFIX = "run:", "verdicts:"
"""How sources of `pairs` begin that hold judged groups, of which pairs are made."""
Link = Literal["logistic", "square", "odds", "prospect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A row of the table of preference methods: a method as data.

    With s(y) the strength of a completion: log pi(y|x) / pi_ref(y|x), its mean over the tokens
    where ``length_normalized``, without the reference's part where ``reference_free``, and with
    d = s(chosen) - s(rejected), ``link`` says what is minimized:

        logistic   -log sigmoid(beta d - margin)
        square     (d - 1 / (2 beta))^2
        odds       -beta log sigmoid(d), where s is the log odds of the geometric mean
                   probability of a token
        prospect   1 - sigmoid(+-beta (s - z0)) of each completion alone, which is desirable or not

    to which ``nll_weight`` times the mean -log pi(chosen) a token is added. Under ``robust`` the
    loss is the unbiased one that it would have without the pairs of ``label_smoothing``.

    Raises ConfigError for a value that its field or its link does not accept.
    """

    name: str
    paper: str
    equation: str
    link: Link
    beta: Positive
    """How strongly the policy is pulled to the reference; it scales the implicit reward. IPO's tau,
    ORPO's lambda."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """The share of pairs that is assumed to be the wrong way round (cDPO)."""
    robust: bool = False
    """Under label smoothing, take the loss without bias (robust DPO) in place of the conservative
    one."""
    reference_free: bool = False
    """Compare log-probabilities alone, without those of the reference."""
    length_normalized: bool = False
    """Compare means over the tokens of a completion in place of sums."""
    margin: NonNegative = 0.0
    """By how much the reward of the chosen completion shall be ahead (SimPO's gamma)."""
    nll_weight: NonNegative = 0.0
    """Weight of the negative log-likelihood of the chosen completion, per token. It keeps the
    probability of that completion from falling."""
    desirable_weight: NonNegative = 1.0
    """Weight of the loss of a desirable completion (KTO)."""
    undesirable_weight: NonNegative = 1.0
    """Weight of the loss of an undesirable completion (KTO)."""

    def __post_init__(self) -> None:
        check_fields(self, "preference")
        no_term = f"0 or false: {self.name} has no such term"
        refused: dict[str, str] = {}
        if self.link != "logistic":
            refused |= dict.fromkeys(("label_smoothing", "robust", "margin"), no_term)
        if self.link == "prospect":
            refused |= dict.fromkeys(("reference_free", "length_normalized", "nll_weight"), no_term)
        for key, accepted in refused.items():
            if getattr(self, key):
                raise self._complaint(key, accepted)
        if self.link == "odds" and not self.length_normalized:
            raise self._complaint("length_normalized", f"true: {self.name} compares mean tokens")
        for key in ("desirable_weight", "undesirable_weight"):
            if self.paired and getattr(self, key) != 1.0:
                raise self._complaint(key, f"1: {self.name} learns from pairs")

    def _complaint(self, key: str, accepted: str) -> ConfigError:
        return ConfigError(message(f"preference.{key}", getattr(self, key), accepted))

    @property
    def paired(self) -> bool:
        """Whether it learns from pairs, and not from completions that are marked good or bad."""
        return self.link != "prospect"

    @property
    def needs_reference(self) -> bool:
        """Whether a completion's strength is measured against a reference policy."""
        return not self.reference_free and self.link != "odds"


if TYPE_CHECKING:

    class _Method(Section):
        method: Text = "dpo"

        def __getattr__(self, field: str) -> Any: ...

else:
    _Method = section_of_row(
        Preference,
        "_Method",
        "The method of ``[preference]``, and what of it to change.",
        {"name", "paper", "equation", "link"},
        method=(
            "dpo",
            "A method of docs/algorithms.md, or ``package.module:object``. The methods: "
            "``dpo``, ``dpo_reference_free``, ``cdpo``, ``rdpo``, ``dpo_norm``, ``irpo``, ``ipo``, "
            "``kto``, ``simpo``, ``orpo``.",
        ),
    )


class PreferenceConfig(_Method):
    """The preference stage (DPO and its relatives), from given pairs, or on-policy from the
    problems of `data.train`."""

    pairs: tuple[Text, ...] = ()
    """Sources of rows with ``prompt``, ``chosen`` and ``rejected`` (or ``completion`` and
    ``label``), in the forms of `data.train`. Judged groups are accepted too, and paired:
    ``run:FOLDER`` (the rollouts of a run) or ``verdicts:FILE`` (what ``assay eval --out FILE``
    wrote). Empty: completions of `data.train` are sampled, judged and paired while training."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out pairs. The loss, accuracy and margin on them are measured before the
    first step, during the run and after it."""
    beta_schedule: tuple[tuple[int, float], ...] = ()
    """Beta while training: ``[step, beta]`` points, with straight lines between them and constant
    outside, as ``[[0, 0.1], [200, 0.02]]``. Empty: `beta` throughout."""
    epochs: Epochs = 1.0
    """Passes over the pairs; a fraction stops part way."""
    pairs_per_step: Natural = 32
    """Pairs that one optimizer step learns from. For a method without pairs (KTO): single
    completions."""
    max_tokens: Natural | None = None
    """Longest prompt and completion together, in tokens. A longer one is a malformed row (see
    `data.on_bad_row`). None: the model's context."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: lower it when memory runs out. None: 2048 on a
    CPU, 8192 on a GPU."""
    watch_start: bool = True
    """Measure how far log-probabilities have moved since the start, also for a method without a
    reference. It costs one forward pass over the given pairs before the first step."""
    warn_fall: Positive = 0.5
    """Warn once when the chosen completions have lost this much log-probability since the start, in
    nats per token."""
    steps: Natural = 100
    """Only where pairs are sampled while training: steps in all."""
    num_prompts: Count = 8
    """Only where pairs are sampled while training: prompts in a step."""
    group_size: Annotated[int, Field(ge=2, le=65536)] = 8
    """Only where pairs are sampled while training: completions of a prompt."""
    pairs_per_group: Count = 1
    """Only where pairs are made of verdicts: the most pairs that a group gives."""
    choose: Literal["best_worst", "random"] = "best_worst"
    """Only where pairs are made of verdicts. ``best_worst``: pair the completion that has the
    highest reward with the one that has the lowest, the second with the second lowest, and so on.
    ``random``: draw pairs of a completion that passed and one that did not."""
    judge: Literal["verdicts", "pairwise"] = "verdicts"
    """Only where pairs are sampled while training: who decides which of two completions is better.
    ``verdicts``: their rewards. ``pairwise``: a judge that compares them in both orders
    (``[verification.options.judge]``)."""
    reference_every: Natural | None = None
    """Only where pairs are sampled while training: after this many steps the policy becomes the new
    reference, again and again. None: the reference stays the policy at the start."""

    @property
    def given(self) -> tuple[str, ...]:
        """The sources of `pairs` that hold pairs already."""
        return tuple(one for one in self.pairs if not is_judged_source(one))

    @field_validator("beta_schedule", mode="before")
    @classmethod
    def _points(cls, value: object) -> object:
        accepted = "a list of [step, beta], steps rising, as [[0, 0.1], [200, 0.02]]"
        return point_list(value, accepted) if value else ()

    @model_validator(mode="after")
    def _keys_agree(self) -> PreferenceConfig:
        if any(beta <= 0 for _, beta in self.beta_schedule):
            raise ValueError("beta_schedule: found a beta of 0 or less; accepted: numbers > 0")
        if self.pairs and self.reference_every is not None:
            raise ValueError(
                f"reference_every: found {self.reference_every} with given pairs, whose reference"
                " is the policy at the start; leave it out, or leave out pairs to sample them"
            )
        if self.pairs and self.judge == "pairwise":
            raise ValueError(
                'judge: found "pairwise" with given pairs, which nobody judges; leave it out, or'
                " leave out pairs to sample them"
            )
        return self


def is_judged_source(source: str) -> bool:
    """Whether a source holds verdicts, and not pairs."""
    return source.startswith((RUN_PREFIX, FILE_PREFIX))
