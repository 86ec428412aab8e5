"""How to sample from a model that a name stands for: as its run did, or by the defaults."""

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
    """How a command samples from a model and judges, as `evaluate` takes it in words.

    What is left out is as the model's run had it. adapter: a folder of adapters, or a run's
    checkpoint that holds some, for a model that has none; it is asked as that run was.
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
        """Whether control of thinking is asked for here, in place of the run's."""
        asked = ("sampling.think_budget=", "sampling.effort=", "sampling.min_think=")
        given = any(one.startswith(asked) for one in several(self.overrides))
        return given or self.think_budget is not None or self.effort is not None


def sampling_config(model: str, problems: Sequence[str], how: HowToSample) -> TrainConfig:
    """Return how to sample from a model: as its run did, or by the defaults.

    Raises RunError where the run's configuration needs consent (`assay.session.consent`).
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
    if tree["model"].get("path") != place:  # a revision is of the run's own base
        tree["model"] = {**tree["model"], "path": place}
        tree["model"].pop("revision", None)
    if how.adapter is not None:
        tree["model"] = {**tree["model"], "adapter": str(adapter or how.adapter)}
    data = {**tree.get("data", {}), "train": list(problems) or ["prompt"], "heldout": []}
    tree["data"] = data
    tree.pop("evaluation", None)  # it is of the run's held-out problems, which are left out
    if verifier is not None:
        data |= {"verifier": verifier, "verifier_by_tag": {}}
    if allow:
        kept_allow = tree.get("verification", {}).get("allow", ())
        tree["verification"] = {**tree.get("verification", {}), "allow": [*kept_allow, *allow]}
    sampling = dict(tree.get("sampling", {}))
    if how.max_tokens is not None:
        sampling["max_tokens"] = how.max_tokens
    budget = {key: getattr(how, key) for key in ("think_budget", "effort")}
    if how.think_budget is not None and how.effort is None:  # a line stands beside a budget
        level = SamplingConfig(**sampling).level() if "effort" in sampling else None
        budget["effort"] = sampling["effort"] if isinstance(level, str) else None
    if any(value is not None for value in budget.values()):  # in place of the run's
        sampling |= budget
    tree["sampling"] = {key: value for key, value in sampling.items() if value is not None}
    tree["run"] = {**tree.get("run", {}), "seed": how.seed}
    if how.device is not None:
        tree["run"]["device"] = how.device
    return configuration.build(tree, overrides)


def checkpoint_of(model: str) -> Path | None:
    """Return the folder of the checkpoint that a name stands for, and say it; None of other names.

    See `find_checkpoint`, whose errors are raised.
    """
    found = find_checkpoint(model)
    if found is not None and found != Path(model):
        say(one_line(f"note: {model} is {found}"))
    return found


def several(texts: Sequence[str] | str) -> Sequence[str]:
    """Return a list of texts; one text is a list of one."""
    return [texts] if isinstance(texts, str) else texts
