"""A server of a real tiny model that tells log-probabilities of given tokens, as vLLM does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from judge_server import Answer, Asked, JudgeServer

from assay.config import ModelConfig
from assay.model.load import load_model

NAME = "large"


class TeacherServer(JudgeServer):
    """Serves ``/v1/models`` and ``/v1/completions`` of a model in a folder.

    most: how many of the likeliest tokens it tells; more are refused. dies_after: requests after
    which it says nothing but errors; None: never.
    """

    def __init__(self, folder: Path, most: int = 20) -> None:
        super().__init__(self.reply_to)
        self.loaded = load_model(ModelConfig(path=str(folder)), "cpu", 0)
        self.most = most
        self.dies_after: int | None = None

    def reply_to(self, asked: Asked) -> Answer:
        """Answer a request."""
        if asked.path == "/v1/models":
            longest = self.loaded.context_length
            return said({"data": [{"id": NAME, "object": "model", "max_model_len": longest}]})
        if asked.path != "/v1/completions":
            return said({"detail": "Not Found"}, 404)
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            return said({"error": {"message": "the engine is dead"}}, 500)
        body = asked.body
        if body["prompt_logprobs"] > self.most:
            words = f"Requested prompt logprobs of {body['prompt_logprobs']}, which is greater than"
            return said({"error": {"message": f"{words} max allowed: {self.most}"}}, 400)
        choice = {"index": 0, "text": "!", "finish_reason": "length", **self.tell(body)}
        return said({"object": "text_completion", "choices": [choice]})

    def tell(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return what a choice holds of the tokens given."""
        tokens, count = body["prompt"], body["prompt_logprobs"]
        with torch.no_grad():
            logits_LV = self.loaded.model(torch.tensor([tokens])).logits[0].float()
        steps: list[dict[str, Any] | None] = [None]
        for logprobs_V, given in zip(logits_LV.log_softmax(-1), tokens[1:], strict=False):
            best = logprobs_V.topk(count).indices.tolist()
            steps.append(
                {
                    str(token): {
                        "logprob": logprobs_V[token].item(),
                        "rank": rank,
                        "decoded_token": self.loaded.tokenizer.decode([token]),
                    }
                    for rank, token in enumerate(dict.fromkeys([given, *best]), 1)
                }
            )
        return {"prompt_logprobs": steps}


def said(body: Any, status: int = 200) -> Answer:
    """Return an answer in JSON."""
    return Answer(json.dumps(body).encode(), status)
