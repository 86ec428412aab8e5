"""The start-up probe: compare the tree layout and the lean decoder with the model's own modules."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ModelError, message
from assay.host.startup import doing
from assay.model.activations import saved_bytes
from assay.model.decoder import hidden_states
from assay.model.family import hidden_tokens, unwrap
from assay.model.head import Head
from assay.model.logprobs import token_logprobs
from assay.model.packing import Batch, Layout
from assay.model.rates import best_seconds, processor_seconds
from assay.model.widened import in_float32
from assay.types import Tokens

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference of a log-probability (nats) that rounding in a type explains."""
# On artificial tokens, bfloat16 modules of a 0.5B model deviated by 0.43 nats from float32.
# On artificial tokens, a fixed limit of 0.25 nats therefore rejected a correct lean decoder.
MOST_OF_PLAIN = 1.5
"""In a narrow type: maximum error relative to the modules' error, both measured against float32."""
FLOOR = 0.01
"""An error (nats) that is always accepted in a narrow type."""
NUM_PROMPTS, PROMPT_TOKENS = 2, 24
# Lengths, in tokens, of the greedy continuations that the probe uses for a 16-bit type.
LENGTHS = (9, 16, 3, 12)


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """Result of the start-up probe: the chosen layout, the reason, and the measurements.

    lean: whether the lean decoder (`assay.model.lean_decoder`) computes the model's layers.
    max_difference: error of log-probabilities with shared prompts, in nats, as defined in
    `Probe.error`. tree_tokens, plain_tokens: number of tokens that each layout computes for a group
    of the configured shape.
    """

    layout: Layout
    lean: bool
    reason: str
    max_difference: float
    tree_tokens: int
    plain_tokens: int
    seconds: float


@doing("probing the layers")
def probe_layouts(
    model: nn.Module,
    prompt_length: int,
    completion_length: int,
    group_size: int,
    layout: Layout | None = None,
    beside: nn.Module | None = None,
    prompts: Sequence[Sequence[int] | Tokens] = (),
) -> LayoutChoice:
    """Score two small groups in both layouts with the loaded model, and choose the layout.

    If the lean decoder is less exact than the model's own modules, the probe chooses the modules.
    If the tree layout gives other results than the plain layout, the probe chooses the plain
    layout. The reason in the result names what the probe chose instead. If several layouts are
    exact, the probe chooses the one with the fewest multiplications for a typical group. The choice
    depends on the model and the shapes, but not on timings, so a run repeats bit for bit. layout:
    force this layout. beside: second model that scores the same batches, such as the reference
    model. prompts: see `Probe`.

    Raises ModelError if the plain layout gives other log-probabilities than the model's own
    modules.
    """
    started = time.perf_counter()
    probes = [Probe(one, prompts) for one in (model, beside) if one is not None]
    lean, note = _prove_lean(probes)
    tree_tokens = prompt_length + group_size * completion_length
    plain_tokens = group_size * (prompt_length + completion_length)
    difference = 0.0
    if layout is not None:
        reason = f"{layout}, chosen beforehand"
    elif forbidden := next(filter(None, (_hidden(one.model) for one in probes)), None):
        layout, reason = "plain", f"one row a completion: {forbidden}"
    else:
        found = [(one.error("tree", lean), one.limit) for one in probes]
        difference, limit = max(found, key=lambda one: one[0] / one[1])
        # Multiplications are counted instead of timed, so that a resumed run makes the same choice.
        savings = _savings(model, prompt_length, completion_length, group_size)
        layout, reason = _choose(difference, limit, savings)
    seconds = time.perf_counter() - started
    reason = "; ".join(filter(None, [reason, note]))
    return LayoutChoice(layout, lean, reason, difference, tree_tokens, plain_tokens, seconds)


@doing("probing the layers")
def prove_lean(
    *models: nn.Module, prompts: Sequence[Sequence[int] | Tokens] = ()
) -> tuple[bool, str]:
    """Return whether the lean decoder is as exact as the modules of each model, and a note if it is
    not.

    prompts: see `Probe`. Raises ModelError if the plain layout gives other log-probabilities than
        the model's own modules.
    """
    return _prove_lean([Probe(model, prompts) for model in models])


def _prove_lean(probes: Sequence[Probe]) -> tuple[bool, str]:
    for probe in probes:
        probe.check_head()
        if not (error := probe.error("plain", lean=True)) <= probe.limit:
            found = f"the lean path is off by {error:.2g} nats (limit {probe.limit:.2g})"
            return False, f"layers by their modules: {found}; {probe.cost_of_modules()}"
    return True, ""


class Probe:
    """Test tokens, and their next-token distributions according to the model's own modules.

    For a 16-bit type, the test tokens are greedy continuations of the first two ``prompts``, and
    decoders are compared with the model's own modules in float32. The test needs likely text,
    because on unlikely text rounding alone changes a log-probability more than a wrong computation
    does. The accepted error is `MOST_OF_PLAIN` times the error of the model's own modules in the
    model's type. For float32, the test tokens are artificial, and a decoder is compared with the
    model's unchanged modules.
    """

    def __init__(self, model: nn.Module, prompts: Sequence[Sequence[int] | Tokens] = ()) -> None:
        self.model = model
        dtype = next(model.parameters()).dtype
        self._largest, self.limit = True, TOLERANCE.get(dtype, 0.0)
        self.batch = _made_up_batch(model)
        # In float32, correct decoders agree closely on all tokens, so artificial tokens are enough.
        # In 16 bits, rounding on unlikely tokens is as large as an error, so likely text is used.
        if dtype.itemsize < torch.float32.itemsize:
            self._become_narrow(_first_two(model, prompts))
        else:
            self._exact_TV = _distributions(model, self.batch, "plain", lean=False)

    def _become_narrow(self, prompts_PL: Tensor) -> None:
        """Use likely text and distributions in float32, unless the model's code raises an
        exception.
        """
        try:
            self.batch = _likely_batch(self.model, prompts_PL)
            with in_float32(self.model):
                exact_TV = _distributions(self.model, self.batch, "plain", lean=False)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # A third-party model may raise any exception.
            exact_TV = None
        plain_TV = _distributions(self.model, self.batch, "plain", lean=False)
        self._exact_TV = plain_TV if exact_TV is None else exact_TV
        if exact_TV is not None and exact_TV.isfinite().all():
            self._largest = False
            # The model's own modules round too: a correct lean decoder may err slightly more.
            self.limit = max(FLOOR, MOST_OF_PLAIN * self._error_of(plain_TV))

    def error(self, layout: Layout, lean: bool) -> float:
        """Return the log-probability error of a layout with a decoder, in nats.

        The error at a position is the expected absolute difference sum_v p_v |log q_v - log p_v|,
        which does not depend on one sampled token. The result is the maximum error over positions
        in float32, and the mean error in a 16-bit type, where a maximum over few positions is
        noisy. The error is infinite if the model returns NaN, or cannot continue from a shared
        prompt.
        """
        try:
            found_TV = _distributions(self.model, self.batch, layout, lean)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # A third-party model may raise any exception.
            # The plain layout must work, so an exception in the plain layout is raised.
            # If only the tree layout fails, prompts are computed once per row and not shared.
            if layout == "plain":
                raise
            return math.inf
        return self._error_of(found_TV)

    def _error_of(self, found_TV: Tensor) -> float:
        # As in sampling and in the loss, each token's error is weighted by its probability.
        errors_T = (self._exact_TV.exp() * (found_TV - self._exact_TV).abs()).sum(-1)
        error = (errors_T.max() if self._largest else errors_T.mean()).item()
        # NaN is not equal to itself.
        return error if error == error else math.inf

    @torch.no_grad()
    def check_head(self) -> None:
        """Raise ModelError if `token_logprobs` differs from the logits of the model itself."""
        model, batch = self.model, self.batch
        (part,) = batch.split(2**20, "plain", [0])
        scored = token_logprobs(model, part, temperature=1.0, layout="plain", lean=False)
        length, prompt = int(batch.length_R[0]), batch.prompts[0].to(batch.device)
        row = torch.cat([prompt, batch.tokens_T[:length]])[None]
        logits_TV = model(input_ids=row, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        theirs_T = logits_TV.log_softmax(-1).gather(-1, batch.tokens_T[:length, None])[:, 0]
        difference = (scored.logprobs_T[:length] - theirs_T).abs().max().item()
        if not difference <= TOLERANCE.get(next(model.parameters()).dtype, 0.0):
            found = f"log-probabilities {difference:.2g} nats from its own logits"
            accepted = "a model whose logits are its output head's, scaled or capped"
            raise ModelError(message(type(unwrap(model)).__name__, found, accepted))

    def cost_of_modules(self) -> str:
        """Describe the extra memory and time of the model's own modules, relative to the lean
        decoder.
        """
        lean, modules = (saved_bytes(self.model, is_lean) / 1024 for is_lean in (True, False))
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        device = str(self.batch.device)
        clock = processor_seconds if device == "cpu" else time.perf_counter
        times = [
            best_seconds(partial(self._through, is_lean, parameters), 0.0, device, clock)
            for is_lean in (True, False)
        ]
        slower = f"take {times[1] / max(times[0], 1e-9):.1f} times as long on a small batch"
        return (
            f"modules keep {modules:.1f} KiB of activations a token and layer, not {lean:.1f}, and "
            f"{slower}"
        )

    def _through(self, lean: bool, parameters: Sequence[Tensor]) -> None:
        """Run the layers forward and, if any parameter is trained, backward."""
        (part,) = self.batch.split(2**20, "plain")
        with torch.set_grad_enabled(bool(parameters)):
            hidden_TD = hidden_states(self.model, part.inputs("plain"), lean)
            if parameters:
                torch.autograd.grad(hidden_TD.sum(), parameters, allow_unused=True)


def _hidden(model: nn.Module) -> str | None:
    return hidden_tokens(unwrap(model).config.get_text_config())


def _choose(difference: float, limit: float, savings: float) -> tuple[Layout, str]:
    if not difference <= limit:
        found = f"differ from plain ones by {difference:.2g} nats (limit {limit:g})"
        if difference == float("inf"):
            found = "cannot be computed by this model"
        return "plain", f"one row a completion: shared prompts {found}"
    if savings <= 0:
        return "plain", "one row a completion: prompts are too short to share"
    proof = f"proved equal within {difference:.1g} nats"
    return "tree", f"prompts are computed once a group ({proof}, {savings:.0%} less to compute)"


def _savings(model: Any, prompt: int, completion: int, group_size: int) -> float:
    """Return the share of a decoder layer's multiplications that the tree layout saves.

    In the matrices of a layer, each token takes 12 D^2 multiplications. In the attention, each pair
    of tokens takes 2 D multiplications. With a mask, attention computes all pairs of tokens of a
    rectangle; without a mask, only the causal half.
    """
    width = getattr(unwrap(model).config.get_text_config(), "hidden_size", 1024)
    # In the plain layout, every row attends to its own copy of the prompt.
    # All numbers of multiplications in this function are divided by 2 D.
    tree_pairs = prompt**2 + group_size * completion * (prompt + completion)
    plain_pairs = group_size * (prompt + completion) ** 2 / 2
    tree = 6 * width * (prompt + group_size * completion) + tree_pairs
    plain = 6 * width * group_size * (prompt + completion) + plain_pairs
    return 1 - tree / plain


def measure_difference(model: nn.Module, lean: bool = True) -> float:
    """Return the error that the tree layout causes, as defined in `Probe.error`."""
    return Probe(model).error("tree", lean)


@torch.no_grad()
def _distributions(model: nn.Module, batch: Batch, layout: Layout, lean: bool) -> Tensor:
    """Return the next-token log-probabilities [T, V] at the position of each token, in float32."""
    (part,) = batch.split(2**20, layout)
    hidden_TD = hidden_states(model, part.inputs(layout), lean)
    head = Head.of(model)
    weight_VD = head.weight_VD.to(hidden_TD.dtype)
    bias_V = None if head.bias_V is None else head.bias_V.to(hidden_TD.dtype)
    raw_TV = torch.nn.functional.linear(hidden_TD, weight_VD, bias_V)
    found_TV = head.scaled(raw_TV, 1.0).log_softmax(-1)
    return torch.empty_like(found_TV).index_copy_(0, part.token_index_T, found_TV)


def _first_two(model: nn.Module, prompts: Sequence[Sequence[int] | Tokens]) -> Tensor:
    """Return the first L tokens of two prompts, [2, L], from ``prompts`` or else artificial."""
    vocabulary: int = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    known = [one for one in prompts if len(one) > 0 and max(one) < vocabulary]
    chosen = [torch.as_tensor(one) for one in known[:NUM_PROMPTS]] or [_made_up(4, 1, vocabulary)]
    length = min(PROMPT_TOKENS, *map(len, chosen))
    return torch.stack([chosen[0][:length], chosen[-1][:length]]).long()


@torch.no_grad()
def _likely_batch(model: Any, prompts_PL: Tensor) -> Batch:
    """Return two groups of two greedy continuations of each prompt.

    The first greedy continuation starts with the most likely token, and the second continuation
    with the second most likely token.
    """
    device = next(model.parameters()).device
    output = model(input_ids=prompts_PL.to(device), use_cache=True)
    first_R1 = output.logits[:, -1].topk(2).indices.reshape(-1, 1)
    rows_RL = prompts_PL.to(device).repeat_interleave(2, 0)
    output = model(input_ids=torch.cat([rows_RL, first_R1], 1), use_cache=True)
    found = [first_R1]
    for _ in range(max(LENGTHS) - 1):
        found.append(output.logits[:, -1].argmax(-1, keepdim=True))
        output = model(input_ids=found[-1], past_key_values=output.past_key_values, use_cache=True)
    tokens_RL = torch.cat(found, 1).cpu()
    # The second prompt is shortened, because prompts of equal length would hide padding errors.
    less = min(3, prompts_PL.shape[1] - 1)
    prompts = (prompts_PL[0], prompts_PL[1][less:])
    rows = [row[:length] for row, length in zip(tokens_RL, LENGTHS, strict=True)]
    return _batch(prompts, rows).to(device)


def _made_up(count: int, start: int, vocabulary: int) -> Tensor:
    # A fixed formula gives the artificial tokens, so that a resumed run makes the same choice.
    return (torch.arange(count) * 37 + start * 11 + 1) % vocabulary


def _made_up_batch(model: nn.Module) -> Batch:
    """Return two groups of two completions with different lengths, whose tokens exist in any
    vocabulary."""
    vocabulary: int = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    lengths = [5, 8, 1, 6]
    prompts = (_made_up(7, 1, vocabulary), _made_up(4, 2, vocabulary))
    rows = _made_up(sum(lengths), 3, vocabulary).split(lengths)
    return _batch(prompts, rows).to(next(model.parameters()).device)


def _batch(prompts: tuple[Tensor, Tensor], rows: Sequence[Tensor]) -> Batch:
    lengths_R = torch.tensor([len(row) for row in rows])
    num_tokens = int(lengths_R.sum())
    ones_R, nothing_T = torch.ones(4), torch.zeros(num_tokens)
    return Batch(
        prompts=prompts,
        tokens_T=torch.cat(list(rows)),
        row_T=torch.repeat_interleave(torch.arange(4), lengths_R),
        sampled_T=torch.ones(num_tokens, dtype=torch.bool),
        think_T=torch.zeros(num_tokens, dtype=torch.bool),
        behavior_logprobs_T=nothing_T,
        versions_T=torch.zeros(num_tokens, dtype=torch.int64),
        group_R=torch.tensor([0, 0, 1, 1]),
        length_R=lengths_R,
        rewards_R=ones_R,
        scores_R=ones_R,
        judged_R=ones_R.bool(),
        correct_R=ones_R,
        truncated_R=torch.zeros(4, dtype=torch.bool),
    )
