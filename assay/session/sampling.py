"""Sampling settings of a named model: those of its run, or the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.config import SamplingConfig, TrainConfig
from assay.host.terminal import one_line, say
from assay.run.names import check_place, find_checkpoint
from assay.session.consent import RULES_UNSET, TO_SAMPLE, open_config


@dataclass(frozen=True)
class HowToSample:
    """Options that commands share for sampling and judging; see `evaluate`.

    None means the setting of the model's run. adapter: a folder of adapters, or a run's checkpoint
    with adapters, for a base model; the settings then come from the adapter's run.
    """

    max_tokens: int | None = None
    think_budget: int | None = None
    effort: str | None = None
    verifier: str | None = None
    overrides: Sequence[str] = ()
    allow: Sequence[str] = ()
    trust_run: bool = False
    seed: int = 0
    device: str | None = None
    adapter: Path | str | None = None

    @property
    def asks_thinking(self) -> bool:
        """Whether the user sets a thinking control here, overriding the run's."""
        asked = ("sampling.think_budget=", "sampling.effort=", "sampling.min_think=")
        given = any(one.startswith(asked) for one in several(self.overrides))
        return given or self.think_budget is not None or self.effort is not None


def sampling_config(model: str, problems: Sequence[str], how: HowToSample) -> TrainConfig:
    """Return the configuration for sampling: that of the model's run, or the defaults.

    Raises RunError if the run's configuration needs consent (`assay.session.consent`).
    """
    overrides, allow, verifier = several(how.overrides), several(how.allow), how.verifier
    check_place(model, model)
    checkpoint = checkpoint_of(model)
    adapter = None if how.adapter is None else checkpoint_of(str(how.adapter))
    tree: dict[str, Any] = {"model": {}, "rl": {}}
    if (trained := adapter or checkpoint) is not None:
        run = trained.parent.parent
        if (run / "config.toml").is_file():
            given = [*overrides, *(RULES_UNSET if verifier is not None else [])]
            trust = how.trust_run
            kept = open_config(run, TO_SAMPLE, overrides=given, allow=allow, trust_run=trust)
            tree = kept.model_dump(exclude_none=True)
    place = str(checkpoint or model)
    # A configured revision belongs to the run's own base model.
    if tree["model"].get("path") != place:
        tree["model"] = {**tree["model"], "path": place}
        tree["model"].pop("revision", None)
    if how.adapter is not None:
        tree["model"] = {**tree["model"], "adapter": str(adapter or how.adapter)}
    data = {**tree.get("data", {}), "train": list(problems) or ["prompt"], "heldout": []}
    tree["data"] = data
    # Evaluation settings refer to the run's held-out problems, which are not loaded here.
    tree.pop("evaluation", None)
    if verifier is not None:
        data |= {"verifier": verifier, "verifier_by_tag": {}}
    if allow:
        kept_allow = tree.get("verification", {}).get("allow", ())
        tree["verification"] = {**tree.get("verification", {}), "allow": [*kept_allow, *allow]}
    sampling = dict(tree.get("sampling", {}))
    if how.max_tokens is not None:
        sampling["max_tokens"] = how.max_tokens
    budget = {key: getattr(how, key) for key in ("think_budget", "effort")}
    # An effort that is a text in the prompt can be combined with a budget; a number cannot.
    if how.think_budget is not None and how.effort is None:
        level = SamplingConfig(**sampling).level() if "effort" in sampling else None
        budget["effort"] = sampling["effort"] if isinstance(level, str) else None
    # The user's budget or effort replaces both settings of the run.
    if any(value is not None for value in budget.values()):
        sampling |= budget
    tree["sampling"] = {key: value for key, value in sampling.items() if value is not None}
    tree["run"] = {**tree.get("run", {}), "seed": how.seed}
    if how.device is not None:
        tree["run"]["device"] = how.device
    return configuration.build(tree, overrides)


def checkpoint_of(model: str) -> Path | None:
    """Return the checkpoint folder of a model name and print it; None if it is no run's name.

    Raises the errors of `find_checkpoint`.
    """
    found = find_checkpoint(model)
    if found is not None and found != Path(model):
        say(one_line(f"note: {model} is {found}"))
    return found


def several(texts: Sequence[str] | str) -> Sequence[str]:
    """Wrap a single string in a list; return a sequence unchanged."""
    return [texts] if isinstance(texts, str) else texts
