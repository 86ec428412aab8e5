"""Everything that a plan may recommend: the methods, and what may have to come before one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["first", "supervised", "preference", "online"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing to do. name: of an online one, its row of the algorithm table; of a preference one, `preference.method`."""

    name: str
    kind: Kind
    title: str


_TABLE: tuple[tuple[str, Kind, str], ...] = (
    ("collect_data", "first", "collect data first"),
    ("harden_verifier", "first", "harden the verifier first"),
    ("train_reward_model", "first", "train a reward model first"),
    ("allow_length", "first", "allow longer completions first"),
    ("sft", "supervised", "supervised fine-tuning"),
    ("rft", "supervised", "rejection-sampling fine-tuning (expert iteration)"),
    ("dpo", "preference", "DPO"),
    ("ipo", "preference", "IPO"),
    ("kto", "preference", "KTO"),
    ("simpo", "preference", "SimPO"),
    ("orpo", "preference", "ORPO"),
    ("cdpo", "preference", "DPO with label smoothing"),
    ("rdpo", "preference", "robust DPO"),
    ("irpo", "preference", "DPO with the chosen completion's likelihood (IRPO)"),
    ("dpo_norm", "preference", "length-normalized DPO"),
    ("dpo_reference_free", "preference", "DPO without a reference"),
    ("dr_grpo", "online", "Dr. GRPO"),
    ("grpo", "online", "GRPO"),
    ("grpo_process", "online", "GRPO with process rewards"),
    ("dapo", "online", "DAPO"),
    ("gspo", "online", "GSPO"),
    ("gspo_product", "online", "GSPO with the product of ratios"),
    ("cispo", "online", "CISPO"),
    ("rloo", "online", "RLOO"),
    ("reinforce", "online", "REINFORCE"),
    ("reinforce_plus_plus", "online", "REINFORCE++"),
    ("reinforce_plus_plus_baseline", "online", "REINFORCE++ with a group baseline"),
    ("kimi", "online", "Kimi k1.5's mirror descent"),
    ("ppo", "online", "PPO"),
    ("ppo_penalty", "online", "PPO with a KL penalty"),
    ("trpo", "online", "TRPO"),
)

CANDIDATES: dict[str, Candidate] = {
    name: Candidate(name, kind, title) for name, kind, title in _TABLE
}
