"""An OpenAI-compatible server of a real tiny model: its completions endpoint takes token ids.

It decodes by plain forward passes over the whole sequence, without a cache, so that it shares no
code with the built-in engine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from judge_server import Answer, Asked, JudgeServer

from assay.config import ModelConfig
from assay.model.load import load_model

NAME = "tiny"
Kind = Literal["vllm", "llama.cpp", "text"]
"""How replies look: as vLLM's, as llama.cpp's, or with a text and counts alone."""


class ModelServer(JudgeServer):
    """Serves ``/v1/models`` and ``/v1/completions`` of a model in a folder.

    change: makes the answer that is sent from a request, its number (from 1, without ``/models``)
    and the true answer.
    """

    def __init__(self, folder: Path, kind: Kind = "vllm", names: tuple[str, ...] = (NAME,)) -> None:
        super().__init__(self.reply_to)
        self.loaded = load_model(ModelConfig(path=str(folder)), "cpu", 0)
        self.kind: Kind = kind
        self.names = names
        self.change: Callable[[Asked, int, Answer], Answer] = lambda asked, number, answer: answer
        self.completed: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def reply_to(self, asked: Asked) -> Answer:
        """Answer a request."""
        if asked.path == "/v1/models":
            return said({"data": [{"id": name, "object": "model"} for name in self.names]})
        if asked.path != "/v1/completions":
            return said({"error": {"message": "Not Found"}}, 404)
        with self._lock:
            self.completed.append(asked.body)
            number = len(self.completed)
            answer = said(self.complete(asked.body))
        return self.change(asked, number, answer)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        prompt, text, by = list(body["prompt"]), "", None
        tokens, logprobs = list[int](), list[float]()
        generator = torch.Generator().manual_seed(body["seed"])
        reason = "length"
        while len(tokens) < body["max_tokens"] and reason == "length":
            with torch.no_grad():
                logits_V = self.loaded.model(torch.tensor([prompt + tokens])).logits[0, -1].float()
            logprobs_V = logits_V.log_softmax(-1)
            if body["temperature"]:
                probs_V = (logits_V / body["temperature"]).softmax(-1)
                token = int(torch.multinomial(probs_V, 1, generator=generator))
            else:
                token = int(logits_V.argmax())
            tokens.append(token)
            logprobs.append(float(logprobs_V[token]))
            ends = token in self.loaded.eos_ids
            text = self.loaded.tokenizer.decode(tokens[: len(tokens) - ends])
            by = next((stop for stop in body.get("stop", ()) if stop in text), None)
            if ends or by is not None:
                reason = "stop"
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reason}
        if self.kind == "vllm":
            names = [self.loaded.tokenizer.decode([token]) for token in tokens]
            choice |= {"token_ids": tokens, "stop_reason": by}
            choice |= {"logprobs": {"tokens": names, "token_logprobs": logprobs}}
        elif self.kind == "llama.cpp":
            pairs = zip(tokens, logprobs, strict=True)
            choice |= {"logprobs": {"content": [{"id": id, "logprob": p} for id, p in pairs]}}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}


def said(body: Any, status: int = 200) -> Answer:
    """Return an answer in JSON."""
    return Answer(json.dumps(body).encode(), status)
