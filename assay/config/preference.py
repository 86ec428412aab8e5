"""The section ``[preference]``: learning from pairs of completions, or from completions that are
labeled desirable or undesirable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from assay.config.row import DOCUMENTED, check_fields, section_of_row
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
"""Prefixes of sources in `pairs` that contain judged groups instead of pairs."""
Link = Literal["logistic", "square", "odds", "prospect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A preference method as data: a preset of the table of preference methods.

    The score s(y) of a completion is log pi(y|x) / pi_ref(y|x), averaged over tokens if
    ``length_normalized``, and without the reference term if ``reference_free``. ``link``
    selects one of four losses. The losses ``logistic``, ``square`` and ``odds`` are functions of d
    = s(chosen) - s(rejected).

        logistic   The loss is -log sigmoid(beta d - margin).
        square     The loss is (d - 1 / (2 beta))^2.
        odds       The loss is -beta log sigmoid(d), where s is the log odds of the geometric mean
                   probability of a token.
        prospect   The loss of a desirable completion is 1 - sigmoid(beta (s - z0)), and that of an
                   undesirable completion 1 - sigmoid(-beta (s - z0)), where z0 estimates the KL to
                   the reference.

    The term ``nll_weight`` times the mean -log pi(chosen) per token is added to each loss. With
    ``robust``, the loss is an unbiased estimate of the loss on correctly labeled pairs, where
    ``label_smoothing`` is the share of mislabeled pairs.

    Raises ConfigError for a value that is invalid for its field or link.
    """

    __pydantic_config__: ClassVar = DOCUMENTED

    name: str
    paper: str
    equation: str
    link: Link
    beta: Positive
    """Strength of the regularization to the reference, and scale of the implicit reward. The same
    field is IPO's tau and ORPO's lambda."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.0
    """Assumed share of pairs with swapped labels (cDPO)."""
    robust: bool = False
    """With label smoothing: the unbiased loss of robust DPO instead of the conservative loss of
    cDPO."""
    reference_free: bool = False
    """Compare the policy's log-probabilities without subtracting the reference's
    log-probabilities."""
    length_normalized: bool = False
    """Compare mean log-probabilities over the tokens of a completion instead of sums."""
    margin: NonNegative = 0.0
    """Margin between the rewards of the chosen and the rejected completion (SimPO's gamma)."""
    nll_weight: NonNegative = 0.0
    """Weight of the negative log-likelihood of the chosen completion, per token. The term prevents
    the probability of the chosen completion from decreasing."""
    desirable_weight: NonNegative = 1.0
    """Weight of the loss of a desirable completion (KTO)."""
    undesirable_weight: NonNegative = 1.0
    """Weight of the loss of an undesirable completion (KTO)."""

    def __post_init__(self) -> None:
        check_fields(self, "preference")
        no_term = f"0 or false: {self.name} has no such term"
        # A setting without effect is an error,
        # because a silently ignored setting hides a user's mistake.
        refused: dict[str, str] = {}
        if self.link != "logistic":
            refused |= dict.fromkeys(("label_smoothing", "robust", "margin"), no_term)
        if self.link == "prospect":
            refused |= dict.fromkeys(("reference_free", "length_normalized", "nll_weight"), no_term)
        for key, accepted in refused.items():
            if getattr(self, key):
                raise self._complaint(key, accepted)
        # ORPO's odds use the mean probability per token,
        # because a sequence's probability underflows.
        if self.link == "odds" and not self.length_normalized:
            raise self._complaint("length_normalized", f"true: {self.name} compares mean tokens")
        for key in ("desirable_weight", "undesirable_weight"):
            if self.paired and getattr(self, key) != 1.0:
                raise self._complaint(key, f"1: {self.name} learns from pairs")

    def _complaint(self, key: str, accepted: str) -> ConfigError:
        return ConfigError(message(f"preference.{key}", getattr(self, key), accepted))

    @property
    def paired(self) -> bool:
        """Whether the method learns from pairs, not from single labeled completions."""
        return self.link != "prospect"

    @property
    def needs_reference(self) -> bool:
        """Whether the loss uses a reference policy."""
        return not self.reference_free and self.link != "odds"


# Type checkers cannot see the fields of a model that is created at run time.
if TYPE_CHECKING:

    class _Method(Section):
        method: Text = "dpo"

        def __getattr__(self, field: str) -> Any: ...

else:
    _Method = section_of_row(
        Preference,
        "_Method",
        "The method of ``[preference]``, and settings that override it.",
        {"name", "paper", "equation", "link"},
        method=(
            "dpo",
            "A method of docs/algorithms.md, or ``package.module:object``. The methods: "
            "``dpo``, ``dpo_reference_free``, ``cdpo``, ``rdpo``, ``dpo_norm``, ``irpo``, ``ipo``, "
            "``kto``, ``simpo``, ``orpo``.",
        ),
    )


class PreferenceConfig(_Method):
    """The preference stage: trains the policy with DPO or a related method.

    The stage learns from existing pairs, or from pairs of the policy's own completions of the
    problems in `data.train`.
    """

    pairs: tuple[Text, ...] = ()
    """Sources of rows with ``prompt``, ``chosen`` and ``rejected`` (or ``completion`` and
    ``label``), named as in `data.train`. Sources of judged groups are also accepted and paired:
    ``run:FOLDER`` (the rollouts of a run) or ``verdicts:FILE`` (a file of
    ``assay eval --out FILE``). Empty: completions of `data.train` are sampled, judged and paired
    during training."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out pairs. Loss, accuracy and margin of these pairs are measured before the
    first step, during the run and at its end."""
    beta_schedule: tuple[tuple[int, float], ...] = ()
    """Schedule of beta: ``[step, beta]`` points, interpolated linearly and constant outside, such
    as ``[[0, 0.1], [200, 0.02]]``. Empty: `beta` is constant."""
    epochs: Epochs = 1.0
    """Number of epochs over the pairs; may be a fraction."""
    pairs_per_step: Natural = 32
    """Number of pairs per optimizer step; for KTO, number of single completions."""
    max_tokens: Natural | None = None
    """Maximum length of prompt and completion together, in tokens. A longer row is malformed (see
    `data.on_bad_row`). None: the model's context."""
    max_tokens_per_micro_batch: Natural | None = None
    """Maximum number of tokens per forward and backward pass. Choose a lower number if memory runs
    out. None: 2048 on a CPU, 8192 on a GPU."""
    watch_start: bool = True
    """Measure the change of log-probabilities since the start, also for a method without a
    reference. The measurement needs one forward pass over existing pairs before the first step."""
    warn_fall: Positive = 0.5
    """Decrease of the chosen completions' log-probability since the start at which the run warns
    once, in nats per token."""
    steps: Natural = 100
    """Only for sampled pairs: number of steps."""
    num_prompts: Count = 8
    """Only for sampled pairs: number of prompts per step."""
    group_size: Annotated[int, Field(ge=2, le=65536)] = 8
    """Only for sampled pairs: number of completions per prompt."""
    pairs_per_group: Count = 1
    """Only for pairs made from verdicts: maximum number of pairs per group."""
    choose: Literal["best_worst", "random"] = "best_worst"
    """Only for pairs made from verdicts. ``best_worst``: pair the completion of highest reward with
    the completion of lowest reward, the second highest with the second lowest, and so on.
    ``random``: draw pairs of a passed and a failed completion."""
    judge: Literal["verdicts", "pairwise"] = "verdicts"
    """Only for sampled pairs: criterion for the better of two completions. ``verdicts``: the
    rewards of the completions. ``pairwise``: a judge that compares two completions in both orders
    (``[verification.options.judge]``)."""
    reference_every: Natural | None = None
    """Only for sampled pairs: number of steps after which the current policy becomes the new
    reference. None: the reference is always the initial policy."""

    @property
    def pair_sources(self) -> tuple[str, ...]:
        """Sources in `pairs` that contain ready-made pairs, and not groups of judged
        completions."""
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
                f"reference_every: found {self.reference_every} with existing pairs, whose"
                " reference is the initial policy; remove it, or remove pairs to sample them"
            )
        if self.pairs and self.judge == "pairwise":
            raise ValueError(
                'judge: found "pairwise" with existing pairs, which are not judged; remove it, or'
                " remove pairs to sample them"
            )
        return self


def is_judged_source(source: str) -> bool:
    """Whether a source contains groups of judged completions instead of pairs."""
    return source.startswith((RUN_PREFIX, FILE_PREFIX))
