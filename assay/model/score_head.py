"""Models that score text: a decoder with a score head, in the model classes of Transformers.

A causal model is converted by replacing its head with a new score head; a saved reward model is
used as it is. The result can be loaded by ``AutoModelForSequenceClassification`` (one score per
text, at its last token) or ``AutoModelForTokenClassification`` (one score per token).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.config import ModelConfig
from assay.data.chat import finished_chat
from assay.errors import ModelError, message
from assay.host.startup import doing
from assay.model.accumulators import Accumulators
from assay.model.decoder import hidden_states
from assay.model.layouts import Layout
from assay.model.load import LoadedModel, choose_device, choose_dtype, load_model
from assay.model.probe import TOLERANCE
from assay.model.score_batch import ScoreBatch, ScoredGroup, pack_scores
from assay.model.sources import ModelSource, read_model, read_tokenizer, saved_family

Scores = Literal["text", "token"]
"""The unit of a score: a whole text, or a token."""

FAMILIES: Mapping[Scores, str] = {
    "text": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
}
"""Transformers' auto class for each unit."""


@doing("loading the model")
def load_scorer(
    config: ModelConfig, device: str | None, seed: int, scores: Scores, num_labels: int
) -> LoadedModel:
    """Load a model for training as a reward model, with dropout disabled.

    config: a causal model, whose head is replaced, or a reward model with the same unit and number
    of labels, which is trained further. The new head is drawn from ``seed`` with standard deviation
    1/sqrt(D + 1) (Stiennon et al., 2020, as reported by Huang et al., 2024, arXiv:2403.17031).
    Raises ModelError.
    """
    saved = _saved_scorer(config)
    if saved is None:
        loaded = load_model(config, device, seed)
        model = with_score_head(loaded.model, scores, num_labels, seed)
        loaded = replace(loaded, model=model)
    else:
        place = choose_device(device)
        dtype = choose_dtype(config.dtype, place)
        model = read_model(saved, dtype, FAMILIES[scores])
        if model.config.num_labels != num_labels:
            where, found = (
                f"model.path {config.path}",
                f"a head of {model.config.num_labels} labels",
            )
            raise ModelError(message(where, found, f"{num_labels}, or a causal model"))
        tokenizer_of = ModelSource.of_tokenizer(config.tokenizer) if config.tokenizer else saved
        tokenizer = read_tokenizer(tokenizer_of, model)
        limit = getattr(model.config, "max_position_embeddings", None)
        loaded = LoadedModel(model.to(place), tokenizer, config.path, dtype, place, limit, ())
    scorer: Any = loaded.model
    scorer.config.pad_token_id = padding_token(loaded.tokenizer)
    return loaded


def with_score_head(model: Any, scores: Scores, num_labels: int, seed: int) -> Any:
    """Return a model with a new score head on the layers of ``model``, which are shared, not
    copied."""
    import transformers

    family: Any = getattr(transformers, FAMILIES[scores])
    config = copy.deepcopy(model.config)
    config.num_labels = num_labels
    dtype, device = next(model.parameters()).dtype, next(model.parameters()).device
    config.dtype = dtype
    try:
        # On the meta device, layers that will be replaced take no memory.
        with torch.device("meta"):
            scorer = family.from_config(config)
    except ValueError as error:
        found = f"{type(model).__name__}, for which Transformers has no class with a score head"
        raise ModelError(message("model.path", found, "a decoder such as Llama or Qwen")) from error
    setattr(scorer, scorer.base_model_prefix, model.base_model)
    head = score_head(scorer).to_empty(device=device).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        drawn = torch.randn(head.weight.shape, generator=generator)
        head.weight.copy_(drawn / (head.weight.shape[1] + 1) ** 0.5)
        if head.bias is not None:
            head.bias.zero_()
    scorer.config.architectures = [type(scorer).__name__]
    scorer.name_or_path = getattr(model, "name_or_path", "")
    return scorer.eval()


def score_head(model: Any) -> nn.Linear:
    """Return the linear score head of a model. Raises ModelError if the score head is not a single
    linear layer."""
    layers = [one for name, one in model.named_children() if name != model.base_model_prefix]
    heads = [one for one in layers if next(one.parameters(), None) is not None]
    if len(heads) != 1 or type(heads[0]) is not nn.Linear:
        found = f"{type(model).__name__}, whose head is not a single linear layer"
        raise ModelError(message("model.path", found, "a decoder such as Llama or Qwen"))
    return heads[0]


def read_scores(
    model: Any,
    batch: ScoreBatch,
    layout: Layout = "tree",
    lean: bool = True,
    accumulators: Accumulators | None = None,
) -> Tensor:
    """Return the logits of the score head at each scored token, [M, C], float32, with gradient.

    The score head is computed in float32, whatever the type of the layers.
    """
    hidden_MD = hidden_states(model, batch.inputs(layout), lean, accumulators)
    head = score_head(model)
    bias = None if head.bias is None else head.bias.float()
    return F.linear(hidden_MD.float(), head.weight.float(), bias)


@dataclass(frozen=True, slots=True)
class ScoreLayout:
    """The layout and decoder that the probe chose to score texts, and the reason for the choice."""

    layout: Layout
    lean: bool
    reason: str


@doing("probing the layers")
@torch.no_grad()
def choose_score_layout(model: Any, groups: list[ScoredGroup]) -> ScoreLayout:
    """Choose the fastest layout and decoder whose scores agree with those of the model itself.

    The lean decoder and the tree layout are used if they reproduce the model's own scores within
    the rounding error of the model's type. If the scores differ by more than the rounding error, a
    slower layout or decoder is used. Raises ModelError if even the plain layout with the model's
    own modules gives other scores.
    """
    device = next(model.parameters()).device
    limit = TOLERANCE.get(next(model.parameters()).dtype, 0.0)
    batch = pack_scores(groups, device)
    theirs = torch.cat([_own_scores(model, group, device) for group in groups])
    # Rounding errors grow with the size of the scores.
    limit *= 1.0 + theirs.abs().max().item()

    def difference(layout: Layout, lean: bool) -> float:
        try:
            found = read_scores(model, batch, layout, lean)
        except Exception:  # A third-party model may raise any exception.
            if layout == "plain" and not lean:
                raise
            return float("inf")
        largest = (found - theirs).abs().max().item()
        # Every comparison with NaN is False, so an error of NaN is replaced by infinity.
        return largest if largest == largest else float("inf")

    plain = difference("plain", lean=False)
    if not plain <= limit:
        found = f"scores {plain:.2g} from its own"
        accepted = "a model whose scores are its head's, of the last hidden state"
        raise ModelError(message(type(model).__name__, found, accepted))
    shares = any(group.num_shared > 1 for group in groups if len(group.texts) > 1)
    ways: tuple[tuple[Layout, bool], ...] = (("tree", True), ("tree", False), ("plain", True))
    for layout, lean in ways:
        if (layout == "tree") > shares:
            continue
        largest = difference(layout, lean)
        if largest <= limit:
            shared = "what texts share is computed once" if layout == "tree" else "one row a text"
            by_modules = "" if lean else ", layers by their modules"
            return ScoreLayout(
                layout, lean, f"{shared}{by_modules} (proved equal within {largest:.1g})"
            )
    return ScoreLayout("plain", False, "one row a text, layers by their modules")


def padding_token(tokenizer: Any) -> int | None:
    """Return a padding token that does not end a text, or None.

    Transformers' sequence classifiers read the score at the last token that is not padding.
    """
    ends: set[int] = set(tokenizer("x")["input_ids"][-1:])
    if (text := finished_chat(tokenizer, "x")) is not None:
        ends |= set(tokenizer(text, add_special_tokens=False)["input_ids"][-1:])
    elif tokenizer.chat_template:
        ends.add(tokenizer.eos_token_id)
    candidates = [tokenizer.pad_token_id, *tokenizer.all_special_ids]
    return next((one for one in candidates if one is not None and one not in ends), None)


def _own_scores(model: Any, group: ScoredGroup, device: torch.device) -> Tensor:
    """Return the logits at the scored tokens of a group from the forward pass of the model itself,
    [M, C].
    """
    found: list[Tensor] = []
    by_token = type(model).__name__.endswith("ForTokenClassification")
    for text in group.texts:
        row = torch.from_numpy(text.tokens.astype("int64"))[None].to(device)
        if by_token:
            logits = model(input_ids=row, use_cache=False).logits[0, text.places.tolist()]
            found.append(logits)
            continue
        # A sequence classifier scores only the end of its input, so it needs one pass per score.
        # Without a padding token, a sequence classifier reads the last position, even padding.
        for place in text.places.tolist():
            given, model.config.pad_token_id = model.config.pad_token_id, None
            try:
                found.append(model(input_ids=row[:, : place + 1], use_cache=False).logits)
            finally:
                model.config.pad_token_id = given
    return torch.cat(found).float()


def _saved_scorer(config: ModelConfig) -> ModelSource | None:
    """Return the source of a saved reward model; None for any other path."""
    if not (Path(config.path).expanduser() / "config.json").is_file():
        return None
    source = ModelSource.find(config.path, config.revision, config.trust_remote_code)
    return source if saved_family(source) in FAMILIES.values() else None
