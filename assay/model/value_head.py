"""Values of states: a float32 head on the policy's hidden states, and separate value models.

The state of a token is the hidden state at the position that predicts the token
(`assay.model.decoder.hidden_states`). A value head needs only the hidden states as input.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from assay.config import ModelConfig
from assay.errors import ModelError, RunError, message
from assay.model.family import unwrap
from assay.model.score_head import FAMILIES, Scores, load_scorer, score_head, with_score_head
from assay.model.sources import ModelSource, saved_family

HEAD_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """The value head computes V(s_t) = w^T h_t + b in float32, with h_t the last-layer hidden state
    that predicts token t.

    The weights of a new value head are zero. An untrained critic therefore predicts the value 0 at
    any scale of the hidden states, like a run without a baseline.
    """

    def __init__(self, width: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float32, device=device))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """Return the value of each state, [T] in float32, with gradient."""
        return hidden_TD.to(self.weight.dtype) @ self.weight + self.bias

    def save(self, folder: Path) -> None:
        """Write ``value_head.safetensors`` to a folder, which is created if needed."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / HEAD_FILE)

    def load(self, folder: Path) -> None:
        """Restore the weights of a saved value head in place and bit for bit. Raises RunError."""
        file = folder / HEAD_FILE
        try:
            self.load_state_dict(load_file(file))
        except (OSError, SafetensorError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            accepted = f"the value head of an earlier save, {len(self.weight)} wide"
            raise RunError(message(str(file), reason, accepted)) from error


class ValueModel(nn.Module):
    """A separate value model: a decoder with its own `ValueHead`.

    backbone: Transformers model for token classification with one label, which Transformers can
    save and load. The score layer of the backbone is not trained. `write_score` copies the rounded
    value head into the score layer of the backbone.
    """

    def __init__(self, backbone: Any, head: ValueHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.requires_grad_(True).eval()
        score_head(backbone).requires_grad_(False)

    @classmethod
    def of_policy(cls, policy: nn.Module) -> ValueModel:
        """Create a value model from a copy of the policy's layers, with merged adapters and a head
        of zeros.

        Raises ModelError if Transformers has no token classification class for the model's
        architecture.
        """
        whole: Any = copy.deepcopy(policy)
        if hasattr(whole, "merge_and_unload"):
            whole = whole.merge_and_unload()
        try:
            backbone = with_score_head(unwrap(whole), "token", 1, seed=0)
        except ModelError as error:
            remedy = 'critic.backbone = "shared" works with any model'
            raise ModelError(f"{str(error).replace('model.path', 'critic')}; {remedy}") from error
        return cls(backbone, ValueHead(width_of(policy), next(backbone.parameters()).device))

    @classmethod
    def load(
        cls, path: str, dtype: torch.dtype, device: torch.device, tokenizer: Any
    ) -> ValueModel:
        """Create a value model from the folder of a causal model, or from that of a reward model
        with its head.

        tokenizer: the policy's. Raises ModelError if loading fails, if the folder has another
        tokenizer, or if its head has more than one label.
        """
        config = ModelConfig(path=path, dtype="bfloat16" if dtype == torch.bfloat16 else "float32")
        saved = saved_family(ModelSource(str(Path(path).expanduser())))
        kinds: list[Scores] = [one for one, family in FAMILIES.items() if family == saved]
        kind = kinds[0] if kinds else None
        try:
            loaded = load_scorer(config, str(device), 0, kind or "token", 1)
            backbone: Any = loaded.model
            if kind == "text":
                backbone = with_score_head(backbone, "token", 1, seed=0)
        except ModelError as error:
            raise ModelError(str(error).replace("model.path", "critic.path")) from error
        if loaded.tokenizer.get_vocab() != tokenizer.get_vocab():
            accepted = "the policy's: a critic reads the policy's tokens"
            raise ModelError(message(f"critic.path {path}", "another tokenizer", accepted))
        model = cls(backbone, ValueHead(width_of(backbone), device))
        if kind is not None:
            head = score_head(loaded.model)
            with torch.no_grad():
                model.head.weight.copy_(head.weight[0])
                if head.bias is not None:
                    model.head.bias.copy_(head.bias)
        return model

    @torch.no_grad()
    def write_score(self) -> None:
        """Copy the value head into the score layer of the backbone, rounded to the type of the
        layer.
        """
        score = score_head(self.backbone)
        score.weight.copy_(self.head.weight[None])
        if score.bias is not None:
            score.bias.copy_(self.head.bias)


def width_of(model: nn.Module) -> int:
    """Return the width of the hidden states of a model."""
    return unwrap(model).config.get_text_config().hidden_size
