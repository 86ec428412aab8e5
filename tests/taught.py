"""Tiny models that say some texts by heart, for tests that need a policy which calls or plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from assay.testing import byte_tokenizer, tiny_model

EOS = 257

Pieces = list[tuple[str, bool]]


def teach(
    folder: Path, pieces: Pieces, prompts: list[str], *others: Pieces, hidden_size: int = 64
) -> Path:
    """Save a tiny model that says the pieces behind each prompt; (text, whether it is learned).

    others: what it says as often in their place.
    """
    rows: list[list[int]] = []
    labels: list[list[int]] = []
    for reply in (pieces, *others):
        said = [(token, learned) for text, learned in reply for token in text.encode()]
        said.append((EOS, True))
        for prompt in prompts:
            rows.append([*prompt.encode(), *(token for token, _ in said)])
            own = [token if learned else -100 for token, learned in said]
            labels.append([-100] * len(prompt.encode()) + own)
    longest = max(map(len, rows))
    inputs = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    targets = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
    model: Any = tiny_model(hidden_size=hidden_size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        loss = model(input_ids=inputs, labels=targets).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
