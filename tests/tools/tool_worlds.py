"""What the tests of tools share: a model that knows one call by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from assay.testing import byte_tokenizer, tiny_model

CALL = "<{tool}>{input}</{tool}>"
RESULT = "={result};"
EOS = 257
QUESTIONS = [f"{n} * 7 = " for n in range(10, 18)]


def teach(folder: Path, pieces: list[tuple[str, bool]], prompts: list[str]) -> Path:
    """Save a tiny model that says the pieces behind each prompt; (text, whether it is learned)."""
    texts = [(list(text.encode()), learned) for text, learned in pieces]
    reply = [token for tokens, _ in texts for token in tokens] + [EOS]
    learned = [flag for tokens, flag in texts for _ in tokens] + [True]
    model: Any = tiny_model(hidden_size=64).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(one)) + list(one.encode()) + reply for one in prompts]
    inputs = torch.tensor(rows)
    mask = torch.tensor([[n == 0 for n in row[:longest]] for row in rows])
    attention = torch.ones_like(inputs)
    attention[:, :longest] = (~mask).long()
    labels = inputs.clone()
    labels[:, :longest] = -100
    labels[:, longest:][:, ~torch.tensor(learned)] = -100
    for _ in range(150):
        loss = model(input_ids=inputs, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
