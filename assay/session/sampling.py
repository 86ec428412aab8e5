"""Sampling options and settings of a named model: those of its run, or the defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ForwardRef, ParamSpec, TypedDict, TypeVar, cast

from assay import config as configuration
from assay.config import SamplingConfig, TrainConfig
from assay.config.mixture import SAMPLING_KEYS
from assay.host.terminal import one_line, say
from assay.run.names import check_place, find_checkpoint, run_of
from assay.session.consent import RULES_UNSET, TO_SAMPLE, open_config

P = ParamSpec("P")
R = TypeVar("R")


class SamplingOptions(TypedDict, total=False):
    """Keywords of every function that samples from a named model; `evaluate` describes them.

    A missing key, or None, selects the setting of the model's run. With ``adapter``, the settings
    are those of the adapter's run.
    """

    max_tokens: int | None
    think_budget: int | None
    effort: str | None
    verifier: str | None
    overrides: Sequence[str]
    allow: Sequence[str]
    trust_run: bool
    seed: int
    device: str | None
    adapter: Path | str | None
    server: str | None
    actors: int | None


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(SamplingOptions.__annotations__),
    **{"overrides": (), "allow": (), "trust_run": False, "seed": 0},
}


def takes_sampling_options(function: Callable[P, R]) -> Callable[P, R]:
    """List the keywords of ``**options: Unpack[SamplingOptions]`` in a function's signature.

    A call with an unknown keyword raises TypeError.
    """
    # Python itself neither shows nor checks the keys of an unpacked TypedDict at run time.
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    annotations = SamplingOptions.__annotations__
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=cast(ForwardRef, annotations[name]).__forward_arg__,
        )
        for name, default in _DEFAULTS.items()
    ]
    listed = signature.replace(parameters=[*own, *shared])

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in listed.parameters:
                asked = f"{function.__name__}() got an unexpected keyword argument {name!r}"
                raise TypeError(asked)
        return function(*args, **kwargs)

    checked.__signature__ = listed  # type: ignore[attr-defined]
    return checked


def asks_thinking(options: SamplingOptions) -> bool:
    """Whether the user's own options set a thinking budget, an effort or a minimum length."""
    asked = ("sampling.think_budget=", "sampling.effort=", "sampling.min_think=")
    if any(one.startswith(asked) for one in several(options.get("overrides", ()))):
        return True
    return options.get("think_budget") is not None or options.get("effort") is not None


def sampling_config(model: str, problems: Sequence[str], options: SamplingOptions) -> TrainConfig:
    """Return the configuration for sampling: that of the model's run, or the default one.

    The run's ``[scale]`` and ``[server]`` are ignored, because they belong to its training. Raises
    RunError if the run's configuration needs consent (`assay.session.consent`).
    """
    overrides, allow = several(options.get("overrides", ())), several(options.get("allow", ()))
    verifier, named_adapter = options.get("verifier"), options.get("adapter")
    check_place(model, model)
    checkpoint = checkpoint_of(model)
    adapter = None if named_adapter is None else checkpoint_of(str(named_adapter))
    tree: dict[str, Any] = {"model": {}, "rl": {}}
    trained = adapter or checkpoint
    if trained is not None and (run := run_of(trained)) is not None:
        given = [*overrides, *(RULES_UNSET if verifier is not None else [])]
        trust = options.get("trust_run", False)
        own = open_config(run, TO_SAMPLE, overrides=given, allow=allow, trust_run=trust)
        tree = own.model_dump(exclude_none=True)
    place = str(checkpoint or model)
    # The run's `model.revision` selects a revision of its base model, not of the named model.
    if tree["model"].get("path") != place:
        tree["model"] = {**tree["model"], "path": place}
        tree["model"].pop("revision", None)
    if named_adapter is not None:
        tree["model"] = {**tree["model"], "adapter": str(adapter or named_adapter)}
    data = {**tree.get("data", {}), "train": list(problems) or ["prompt"], "heldout": []}
    tree["data"] = data
    # Evaluation settings refer to the run's held-out problems, which this command does not load.
    tree.pop("evaluation", None)
    # A second verifier belongs to training, and may be the verifier that this command names.
    tree.pop("audit", None)
    # The training's cluster and server may be gone or cost money, so this command ignores both.
    tree["scale"], tree["server"] = {}, {}
    if (actors := options.get("actors")) is not None:
        tree["scale"]["rollout_actors"] = actors
    if (server := options.get("server")) is not None:
        tree["server"]["url"] = server
    if verifier is not None:
        data |= {"verifier": verifier, "verifier_by_tag": {}}
    data["mixture"] = _sampling_of_parts(data.get("mixture", {}), options)
    if allow:
        earlier_allow = tree.get("verification", {}).get("allow", ())
        tree["verification"] = {**tree.get("verification", {}), "allow": [*earlier_allow, *allow]}
    sampling = dict(tree.get("sampling", {}))
    if (max_tokens := options.get("max_tokens")) is not None:
        sampling["max_tokens"] = max_tokens
    budget = {"think_budget": options.get("think_budget"), "effort": options.get("effort")}
    # An effort that is a line of the prompt can be combined with a budget; a numeric effort cannot.
    if budget["think_budget"] is not None and budget["effort"] is None:
        level = SamplingConfig(**sampling).level() if "effort" in sampling else None
        budget["effort"] = sampling["effort"] if isinstance(level, str) else None
    # A budget or effort from the user replaces the budget and the effort of the run.
    if any(value is not None for value in budget.values()):
        sampling |= budget
    tree["sampling"] = {key: value for key, value in sampling.items() if value is not None}
    tree["run"] = {**tree.get("run", {}), "seed": options.get("seed", 0)}
    if (device := options.get("device")) is not None:
        tree["run"]["device"] = device
    return configuration.build(tree, overrides)


def _sampling_of_parts(
    parts: Mapping[str, Mapping[str, Any]], options: SamplingOptions
) -> dict[str, dict[str, Any]]:
    """Return the sampling settings of a mixture's parts, without settings that the user set.

    A part's settings apply to rows with the part's tag. Sources and weights of parts belong to
    training and are omitted; the verifiers of parts are in ``verifier_by_tag``.
    """
    given = {one.partition("=")[0].strip() for one in several(options.get("overrides", ()))}
    kept = [
        key for key in SAMPLING_KEYS if options.get(key) is None and f"sampling.{key}" not in given
    ]
    return {name: {key: part[key] for key in kept if key in part} for name, part in parts.items()}


def checkpoint_of(model: str) -> Path | None:
    """Return and print the checkpoint folder that a run's name selects; None for other models.

    Raises the errors of `find_checkpoint`.
    """
    found = find_checkpoint(model)
    if found is not None and found != Path(model):
        say(one_line(f"note: {model} is {found}"))
    return found


def several(texts: Sequence[str] | str) -> Sequence[str]:
    """Wrap a single string in a list; return a sequence unchanged."""
    return [texts] if isinstance(texts, str) else texts
