"""The table of preference methods: each is a named setting, with the paper and equation that it is.

Adding a method is adding a row. What a row says is computed in `assay.learn.preference_losses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from assay.errors import ConfigError, message
from assay.learn.tables import choose_row

Link = Literal["logistic", "square", "odds", "prospect"]

_NOT_NEGATIVE = ("margin", "nll_weight", "desirable_weight", "undesirable_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A preference method as data; field names are those of ``[preference]`` in a config.

    With s(y) the strength of a completion: log pi(y|x) / pi_ref(y|x), its mean over the tokens where
    ``length_normalized``, without the reference's part where ``reference_free``, and with d = s(chosen)
    - s(rejected), ``link`` says what is minimized:

        logistic   -log sigmoid(beta d - margin)
        square     (d - 1 / (2 beta))^2
        odds       -beta log sigmoid(d), where s is the log odds of the geometric mean probability of a token
        prospect   1 - sigmoid(+-beta (s - z0)) of each completion alone, which is desirable or not

    to which ``nll_weight`` times the mean -log pi(chosen) a token is added. label_smoothing: the share of
    pairs that are taken to be the wrong way round; under ``robust`` the loss is the unbiased one that
    it would have without them. desirable_weight, undesirable_weight: of the two kinds of
    completions under ``prospect``.

    Raises ConfigError for a value that is out of its range, or that its link does not know.
    """

    name: str
    paper: str
    equation: str
    link: Link
    beta: float
    label_smoothing: float = 0.0
    robust: bool = False
    reference_free: bool = False
    length_normalized: bool = False
    margin: float = 0.0
    nll_weight: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.link not in get_args(Link):
            raise self._complaint("link", " | ".join(get_args(Link)))
        if not self.beta > 0:
            raise self._complaint("beta", "a number > 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise self._complaint("label_smoothing", "a number from 0 to below 0.5")
        for key in _NOT_NEGATIVE:
            if not getattr(self, key) >= 0:
                raise self._complaint(key, "a number >= 0")
        if self.link != "logistic":
            for key in ("label_smoothing", "robust", "margin"):
                if getattr(self, key):
                    raise self._complaint(key, f"0 or false: {self.name} has no such term")
        if self.link == "odds" and not self.length_normalized:
            raise self._complaint("length_normalized", f"true: {self.name} compares mean tokens")
        if self.link == "prospect":
            for key in ("reference_free", "length_normalized", "nll_weight"):
                if getattr(self, key):
                    raise self._complaint(key, f"0 or false: {self.name} has no such term")
            return
        for key in ("desirable_weight", "undesirable_weight"):
            if getattr(self, key) != 1.0:
                raise self._complaint(key, f"1: {self.name} learns from pairs")

    def _complaint(self, key: str, accepted: str) -> ConfigError:
        return ConfigError(message(f"preference.{key}", getattr(self, key), accepted))

    @property
    def paired(self) -> bool:
        """Whether it learns from pairs, and not from single completions that are marked good or bad."""
        return self.link != "prospect"

    @property
    def needs_reference(self) -> bool:
        """Whether a completion's strength is measured against a reference policy."""
        return not self.reference_free and self.link != "odds"


PREFERENCES: dict[str, Preference] = {
    row.name: row
    for row in (
        Preference(
            name="dpo",
            paper="Rafailov et al. 2023, Direct Preference Optimization (arXiv 2305.18290)",
            equation="eq. 7",
            link="logistic",
            beta=0.1,
        ),
        Preference(
            name="dpo_reference_free",
            paper="Rafailov et al. 2023 (arXiv 2305.18290), as in its published code",
            equation="eq. 7 with a uniform reference",
            link="logistic",
            beta=0.1,
            reference_free=True,
        ),
        Preference(
            name="cdpo",
            paper="Mitchell 2023, A note on DPO with noisy preferences (ericmitchell.ai/cdpo.pdf)",
            equation="-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d)",
            link="logistic",
            beta=0.1,
            label_smoothing=0.1,
        ),
        Preference(
            name="rdpo",
            paper="Chowdhury et al. 2024, Provably Robust DPO (arXiv 2403.00409)",
            equation="[-(1 - e) log sigmoid(beta d) + e log sigmoid(-beta d)] / (1 - 2 e)",
            link="logistic",
            beta=0.1,
            label_smoothing=0.1,
            robust=True,
        ),
        Preference(
            name="dpo_norm",
            paper="Lambert et al. 2024, Tulu 3 (arXiv 2411.15124)",
            equation="eq. 6: log-ratios are means over the tokens",
            link="logistic",
            beta=5.0,
            length_normalized=True,
        ),
        Preference(
            name="irpo",
            paper="Pang et al. 2024, Iterative Reasoning Preference Optimization (arXiv 2404.19733)",
            equation="section 2, DPO+NLL: DPO and the chosen completion's negative log-likelihood a token",
            link="logistic",
            beta=0.1,
            nll_weight=1.0,
        ),
        # Log-ratios are sums over the tokens, as the paper writes them; TRL takes means, which is
        # length_normalized = true here.
        Preference(
            name="ipo",
            paper="Azar et al. 2023, A General Theoretical Paradigm (arXiv 2310.12036)",
            equation="eq. 17, with beta for tau",
            link="square",
            beta=0.1,
        ),
        Preference(
            name="kto",
            paper="Ethayarajh et al. 2024, KTO (arXiv 2402.01306)",
            equation="eq. 7 and 8, z0 from mismatched completions",
            link="prospect",
            beta=0.1,
        ),
        Preference(
            name="simpo",
            paper="Meng et al. 2024, SimPO (arXiv 2405.14734)",
            equation="eq. 6, with margin for gamma",
            link="logistic",
            beta=2.0,
            margin=1.0,
            reference_free=True,
            length_normalized=True,
        ),
        Preference(
            name="orpo",
            paper="Hong et al. 2024, ORPO (arXiv 2403.07691)",
            equation="eq. 6 and 7, with beta for lambda",
            link="odds",
            beta=0.1,
            length_normalized=True,
            nll_weight=1.0,
        ),
    )
}


def preference(name: str, **overrides: Any) -> Preference:
    """Return a row of the table, or the object ``package.module:object``, with fields replaced.

    An override that is None leaves the row as it is. Raises ConfigError for a name or a field that
    does not exist.
    """
    return choose_row(PREFERENCES, Preference, "preference.method", name, overrides)
