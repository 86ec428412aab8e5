"""Options and settings for sampling from a named model: those of its run, or the defaults."""

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
    """Keywords of every function that samples from a named model, as `evaluate` describes them.

    If a key is missing or None, the setting of the model's run applies. With ``adapter``, the
    settings are those of the run that trained the adapter.
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
    """List the keywords of ``**options: Unpack[SamplingOptions]`` in the signature of a function.

    A call of the function with an unknown keyword raises TypeError.
    """
    # At run time, Python itself neither shows nor checks the keys of an unpacked TypedDict.
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
    """Whether the user's options set a thinking budget, an effort or a minimum length."""
    asked = ("sampling.think_budget=", "sampling.effort=", "sampling.min_think=")
    if any(one.startswith(asked) for one in several(options.get("overrides", ()))):
        return True
    return options.get("think_budget") is not None or options.get("effort") is not None


def sampling_config(model: str, problems: Sequence[str], options: SamplingOptions) -> TrainConfig:
    """Return the configuration for sampling: that of the model's run, or else the default.

    ``[scale]`` and ``[server]`` of the run are ignored, because they belong to its training. Raises
    RunError if the configuration of the run needs consent (`assay.session.consent`).
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
    # The run's `model.revision` selects a revision of the base model, not of the named model.
    if tree["model"].get("path") != place:
        tree["model"] = {**tree["model"], "path": place}
        tree["model"].pop("revision", None)
    if named_adapter is not None:
        tree["model"] = {**tree["model"], "adapter": str(adapter or named_adapter)}
    data = {**tree.get("data", {}), "train": list(problems) or ["prompt"], "heldout": []}
    tree["data"] = data
    # Evaluation settings are about the run's held-out problems, which this command does not load.
    tree.pop("evaluation", None)
    # A second verifier belongs to training, and may be the verifier that this command names.
    tree.pop("audit", None)
    # The cluster and server of the training may be gone or cost money, so both are ignored.
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
    # An effort that is a line of the prompt can be combined with a budget, unlike a numeric effort.
    if budget["think_budget"] is not None and budget["effort"] is None:
        level = SamplingConfig(**sampling).level() if "effort" in sampling else None
        budget["effort"] = sampling["effort"] if isinstance(level, str) else None
    # A thinking budget or effort from the user replaces both of the run.
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
    """Return the sampling settings of a mixture's parts, without settings that the user has set.

    The settings of a mixture part apply to rows that have the part's tag. Sources and weights of
    mixture parts belong to training and are omitted; verifiers of parts are in ``verifier_by_tag``.
    """
    given = {one.partition("=")[0].strip() for one in several(options.get("overrides", ()))}
    kept = [
        key for key in SAMPLING_KEYS if options.get(key) is None and f"sampling.{key}" not in given
    ]
    return {name: {key: part[key] for key in kept if key in part} for name, part in parts.items()}


def checkpoint_of(model: str) -> Path | None:
    """Return and print the checkpoint folder that a run's name selects; None for any other model.

    Raises the errors of `find_checkpoint`.
    """
    found = find_checkpoint(model)
    if found is not None and found != Path(model):
        say(one_line(f"note: {model} is {found}"))
    return found


def several(texts: Sequence[str] | str) -> Sequence[str]:
    """Wrap a single string in a list; any other sequence is returned unchanged."""
    return [texts] if isinstance(texts, str) else texts
