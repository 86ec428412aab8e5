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

import numpy as np
import torch

from assay.config import SamplingConfig
from assay.generate.sampler import sample, uniforms
from assay.generate.vllm_worker import WeightReceiver
from assay.testing import byte_tokenizer, tiny_model


class Worker(WeightReceiver):
    """Holds a model of random weights, and loads others as vLLM's worker does."""

    def __init__(self, hidden_size: int) -> None:
        self.model = tiny_model(seed=99, hidden_size=hidden_size)
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
        self.settings, self.environment = settings, dict(os.environ)
        self.config = json.loads((Path(settings["model"]) / "config.json").read_text())
        self.worker = Worker(self.config["hidden_size"])
        self.asked: list[tuple[str, list[int], Any]] = []
        self.waiting: list[tuple[str, list[int], Any]] = []
        self.caches_dropped = 0
        self.aborted: list[str] = []
        self.engine_core = SimpleNamespace(shutdown=lambda: None)
        self.script: list[tuple[list[int], str, Any]] = [([65, 66, 257], "stop", 257)]

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        return [getattr(self.worker, method)(*args)]

    def reset_prefix_cache(self) -> bool:
        """As vLLM: the cache stays while a request uses it."""
        self.caches_dropped += not self.waiting
        return not self.waiting

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        """Refuses what vLLM refuses."""
        for value in vars(params).values():  # vLLM refuses what msgpack cannot hold
            assert value is None or type(value) in (bool, int, float, str, list, dict), value
        tokens, most = prompt["prompt_token_ids"], self.config["vocab_size"]
        assert tokens and all(type(one) is int and 0 <= one < most for one in tokens)
        assert len(tokens) < (self.settings["max_model_len"] or len(tokens) + 1)
        assert params.max_tokens >= 1 and 0 <= params.seed < 2**63
        assert params.detokenize or not getattr(params, "stop", None), "stop strings need text"
        assert len(params.logprob_token_ids or ()) <= self.settings["max_logprobs"]
        assert name not in [one for one, _, _ in self.waiting], "a name of its own"
        self.asked.append((name, prompt["prompt_token_ids"], params))
        self.waiting.append(self.asked[-1])

    def abort_request(self, names: Sequence[str]) -> None:
        self.aborted += names
        self.waiting = [one for one in self.waiting if one[0] not in names]

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        """The newest request ends first, so that the order of answers is not that of requests."""
        name, tokens, params = self.waiting.pop()
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
    """Answers with tokens of its own model: in each step one more for every request, the newest first.

    A request that streams (DELTA) is answered in each step, another one at its end.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.tokenizer = byte_tokenizer()
        self.so_far: dict[str, list[tuple[int, float]]] = {}

    def uniform(self, params: Any, number: int) -> float:
        """The random number of a request's token, by the request's seed."""
        return float(uniforms(np.array([params.seed], np.uint64), np.array([number]))[0])

    @torch.no_grad()
    def next_token(self, prompt: list[int], said: list[int], params: Any) -> tuple[int, float]:
        logits_1V = self.worker.model(torch.tensor([[*prompt, *said]])).logits[:, -1]
        uniform_1 = torch.tensor([self.uniform(params, len(said))], dtype=torch.float64)
        sampling = SamplingConfig(temperature=params.temperature, top_k=params.top_k or None)
        token_1, logprob_1, _ = sample(logits_1V, uniform_1, sampling)
        return int(token_1), float(logprob_1)

    def step(self) -> list[Any]:
        if self.waiting[-1][2].logprob_token_ids:
            return super().step()
        return [one for asked in reversed([*self.waiting]) for one in self.advance(*asked)]

    def advance(self, name: str, prompt: list[int], params: Any) -> list[Any]:
        """Sample one token of a request; return its output, if there is one now."""
        told = self.so_far.setdefault(name, [])
        told.append(self.next_token(prompt, [token for token, _ in told], params))
        said, streams = [token for token, _ in told], params.output_kind == "delta"
        reason = stop = None
        text = self.tokenizer.decode(said) if params.stop else ""
        if said[-1] in (params.stop_token_ids or ()):
            reason, stop = "stop", said[-1]
        elif found := [one for one in params.stop or () if one in text]:
            reason, stop = "stop", found[0]
        elif len(said) == params.max_tokens:
            reason = "length"
        if reason is not None:
            self.waiting = [one for one in self.waiting if one[0] != name]
        elif not streams:
            return []
        new = told[-1:] if streams else told
        rows = [{token: value} for token, value in new]
        output = answer([token for token, _ in new], rows, reason, stop)
        return [SimpleNamespace(request_id=name, outputs=[output])]


def answer(
    tokens: list[int], told: list[dict[int, float]], reason: str | None = "length", stop: Any = None
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
        sampling_params=SimpleNamespace(
            RequestOutputKind=SimpleNamespace(FINAL_ONLY="final", DELTA="delta")
        ),
    )
