"""A stand-in for the module ``vllm``: its worker is ours over a real tiny model, its engine a loop.

It stands where only our side is tested: what is asked, how answers are read, and what a load must
prove. What vLLM does itself is tested with vLLM, under the marker ``peer``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from assay.generate.vllm_worker import WeightReceiver
from assay.testing import tiny_model


class Worker(WeightReceiver):
    """Holds a model of random weights, and loads others as vLLM's worker does."""

    def __init__(self) -> None:
        self.model = tiny_model(seed=99)
        self.lost = ""

    def get_model(self) -> Any:
        return self.model

    @torch.no_grad()
    def reload_weights(self, weights_iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        mine = self.model.state_dict()
        for name, tensor in weights_iterator:
            if not self.lost or self.lost not in name:
                mine[name].copy_(tensor)


class FakeEngine:
    """Answers each request with the words of a script, or with log-probabilities of the model."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.worker = settings, Worker()
        self.environment = dict(os.environ)
        self.config = json.loads((Path(settings["model"]) / "config.json").read_text())
        self.asked: list[tuple[str, list[int], Any]] = []
        self.waiting: list[tuple[str, list[int], Any]] = []
        self.caches_dropped = 0
        self.output_processor = SimpleNamespace(request_states={})
        self.engine_core = SimpleNamespace(shutdown=lambda: None)
        self.script: list[tuple[list[int], str, Any]] = [([65, 66, 257], "stop", 257)]

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        return [getattr(self.worker, method)(*args)]

    def reset_prefix_cache(self) -> None:
        self.caches_dropped += 1

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        self.output_processor.request_states[name] = params
        self.asked.append((name, prompt["prompt_token_ids"], params))
        self.waiting.append(self.asked[-1])

    def abort_request(self, names: Sequence[str], internal: bool) -> None:
        self.waiting = [one for one in self.waiting if one[0] not in names]
        self.output_processor.request_states.clear()

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        """The newest request ends first, so that the order of answers is not that of requests."""
        name, tokens, params = self.waiting.pop()
        del self.output_processor.request_states[name]
        if params.logprob_token_ids:
            with torch.no_grad():
                logits = self.worker.model(torch.tensor([tokens])).logits[0, -1]
            told = logits.log_softmax(-1)
            output = answer([0], [{n: float(told[n]) for n in params.logprob_token_ids}])
        else:
            sampled, reason, stop = self.script[params.seed % len(self.script)]
            output = answer(sampled, [{n: -0.5 - n} for n in sampled], reason, stop)
        return [SimpleNamespace(request_id=name, outputs=[output])]


class SamplingEngine(FakeEngine):
    """Answers each request with tokens of its own model, by the request's seed: for whole runs."""

    @torch.no_grad()
    def step(self) -> list[Any]:
        name, prompt, params = self.waiting[-1]
        if params.logprob_token_ids:
            return super().step()
        self.waiting.pop()
        del self.output_processor.request_states[name]
        draws = torch.Generator().manual_seed(params.seed)
        tokens, told, stop = list[int](), list[dict[int, float]](), None
        while len(tokens) < params.max_tokens and stop is None:
            logits_V = self.worker.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            logprobs_V = (logits_V / (params.temperature or 1.0)).log_softmax(-1)
            chosen = torch.multinomial(logprobs_V.exp(), 1, generator=draws)
            token = int(chosen if params.temperature else logits_V.argmax())
            tokens.append(token)
            told.append({token: float(logprobs_V[token])})
            stop = token if token in (params.stop_token_ids or ()) else None
        reason = "length" if stop is None else "stop"
        return [SimpleNamespace(request_id=name, outputs=[answer(tokens, told, reason, stop)])]


def answer(
    tokens: list[int], told: list[dict[int, float]], reason: str = "length", stop: Any = None
) -> Any:
    rows = [{n: SimpleNamespace(logprob=value) for n, value in row.items()} for row in told]
    return SimpleNamespace(token_ids=tokens, logprobs=rows, finish_reason=reason, stop_reason=stop)


def fake_vllm(
    known: Sequence[str] = ("LlamaForCausalLM",), engine: type[FakeEngine] = FakeEngine
) -> Any:
    """Return the module; ``made`` has its engines."""
    made: list[FakeEngine] = []

    def from_engine_args(settings: dict[str, Any]) -> FakeEngine:
        made.append(engine(settings))
        return made[-1]

    def params(**given: Any) -> Any:
        return SimpleNamespace(**{"logprob_token_ids": None, **given})

    return SimpleNamespace(
        made=made,
        EngineArgs=lambda **given: given,
        LLMEngine=SimpleNamespace(from_engine_args=from_engine_args),
        SamplingParams=params,
        TokensPrompt=dict,
        ModelRegistry=SimpleNamespace(get_supported_archs=lambda: known),
        sampling_params=SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY="final")),
    )
