"""``assay model merge``: merge several models, and evaluate all of them and the merged model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from assay import config as configuration
from assay.config import ModelConfig
from assay.errors import ConfigError, ModelError, message
from assay.host.files import check_new_folder
from assay.host.startup import doing
from assay.host.terminal import lined
from assay.model.load import LoadedModel, load_model, other_token, save_model
from assay.model.merge import MergeMethod, Tensors, check_alike, merge_tensors
from assay.model.sources import ModelSource, saved_dtype
from assay.model.weights import Weights
from assay.run.startup import show_startup
from assay.session.assemble import show_sampling
from assay.session.evaluate import Evaluation, evaluate
from assay.session.sampling import checkpoint_of
from assay.training.api import open_asked


@dataclass(frozen=True)
class MergeResult:
    """Result of a merge.

    model: folder of the merged model. accuracies: evaluation of each input model, then of the
    merged model; empty without problems.
    """

    model: str
    accuracies: Sequence[tuple[str, Evaluation]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        rows = [{"model": name, **found.as_dict()} for name, found in self.accuracies]
        return {"model": self.model, "accuracies": rows}

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.accuracies), default=0)
        rows = [f"{name:<{width}}  {found}" for name, found in self.accuracies]
        return lined([*rows, self.model])


def merge(
    models: Sequence[str],
    out: Path | str,
    *,
    method: str = "linear",
    weights: Sequence[float] = (),
    base: str | None = None,
    problems: Sequence[str] = (),
    max_problems: int | None = None,
    quiet: bool = False,
) -> MergeResult:
    """Merge models into a new folder. If held-out problems are given, evaluate each model and the
    merged model.

    weights: one weight per model; by default all weights are 1. base: reference model of
    ``task_arithmetic``. problems: held-out problems, which are sampled greedily with the other
    settings of the first model's run. Raises UserError.
    """
    weights = list(weights) or [1.0] * len(models)
    if method not in get_args(MergeMethod):
        accepted = ", ".join(get_args(MergeMethod))
        raise ConfigError(message("--method", method, accepted))
    check_request(models, method, weights, base)
    check_new_folder(Path(out).expanduser(), "--out")
    named = [*models, *([base] if base is not None else [])]
    with show_startup(quiet):
        loaded = {name: _load(name) for name in named}
        tensors: dict[str, Tensors] = {name: one.model.state_dict() for name, one in loaded.items()}
        # Models that cannot be merged are refused before any evaluation, which takes minutes.
        check_alike(tensors)
        _check_tokens(loaded)
        origin = None if base is None else tensors[base]
        parts = [tensors[name] for name in models]
        with doing("merging the weights"):
            merged = merge_tensors(parts, weights, cast("MergeMethod", method), origin)
    accuracies: list[tuple[str, Evaluation]] = []
    if problems:
        # A list of pairs and not a dict, because an input model may have the name "merged" too.
        asked = [*tensors.items(), ("merged", merged)]
        accuracies = _measured(models[0], asked, problems, max_problems, quiet)
    first = loaded[models[0]]
    Weights(0, merged).load_into(first.model)
    source = ModelSource.find(str(checkpoint_of(models[0]) or models[0]), None)
    with show_startup(quiet), doing("writing the model"):
        save_model(first.model.to(saved_dtype(source)), first.tokenizer, Path(out).expanduser())
    return MergeResult(str(out), accuracies)


def check_request(
    models: Sequence[str], method: str, weights: Sequence[float], base: str | None
) -> None:
    """Check the arguments of `merge` before any model is loaded. Raises ConfigError."""
    least = 1 if method == "task_arithmetic" else 2
    if len(models) < least or (method == "slerp" and len(models) > least):
        accepted = "exactly 2" if method == "slerp" else f"at least {least}"
        raise ConfigError(message(f"merge by {method}", f"{len(models)} models", accepted))
    if len({*models}) < len(models):
        raise ConfigError(message("merge", "a model twice", "each once; --weight says how much"))
    if len(weights) != len(models):
        raise ConfigError(message("--weight", f"{len(weights)} weights", f"{len(models)}, or none"))
    # A NaN weight passes sums and comparisons without an exception,
    # and all merged weights become NaN.
    if not all(map(math.isfinite, weights)):
        raise ConfigError(message("--weight", list(weights), "finite numbers"))
    if method != "task_arithmetic" and (min(weights) < 0 or not sum(weights)):
        raise ConfigError(message("--weight", list(weights), "numbers of 0 or more, not all 0"))
    if (base is not None) != (method == "task_arithmetic"):
        found = "none" if base is None else f"{base} with {method}"
        accepted = "a base model with task_arithmetic, and with no other method"
        raise ConfigError(message("--base", found, accepted))


def _load(name: str) -> LoadedModel:
    place = checkpoint_of(name)
    # Models are loaded in float32: sums of bfloat16 weights would lose small differences.
    config = ModelConfig(path=str(place or name), dtype="float32")
    loaded = load_model(config, "cpu", 0)
    # With adapters, the tensors of a model are not those of its base model. PEFT adds this method.
    if hasattr(loaded.model, "disable_adapter"):
        remedy = f"assay model export {name} FOLDER, and merge FOLDER"
        raise ModelError(message(f"merge {name}", "adapters", "whole weights", remedy))
    return loaded


def _check_tokens(loaded: Mapping[str, LoadedModel]) -> None:
    """Raise ModelError unless all tokenizers assign the same token ids."""
    # Models with tensors of equal shapes may still have different vocabularies.
    (first_name, first), *others = loaded.items()
    for name, other in others:
        for one, two in ((first, other), (other, first)):
            if odd := other_token(one.tokenizer, two.tokenizer):
                found = f"another tokenizer than that of {first_name}: {odd[1]!r} is not {odd[0]}"
                raise ModelError(message(f"merge {name}", found, "models with one tokenizer"))


def _measured(
    first: str,
    models: Sequence[tuple[str, Tensors]],
    problems: Sequence[str],
    max_problems: int | None,
    quiet: bool,
) -> list[tuple[str, Evaluation]]:
    """Evaluate all models greedily on the same problems, one model after another."""
    found: list[tuple[str, Evaluation]] = []
    with ExitStack() as stack:
        with show_startup(quiet):
            session, rows = open_asked(first, list(problems), max_problems, 1, {}, stack)
        watch = show_sampling(session.generator, stack, quiet)
        sampling = configuration.at_temperature(session.config.sampling, 0.0)
        assert session.loaded is not None
        own = session.loaded.model.state_dict()
        # One session serves all models: their weights are loaded into its model in turn.
        for version, (name, tensors) in enumerate(models, start=1):
            given = {key: tensor.to(own[key]) for key, tensor in tensors.items()}
            Weights(version, given).load_into(session.loaded.model)
            session.generator.load_policy(Weights.of(session.loaded.model, version))
            with watch.doing(name, len(rows)):
                found.append(
                    (name, evaluate(session.generator, session.verifiers, rows, sampling, 1))
                )
    return found
