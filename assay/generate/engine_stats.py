"""Statistics of a generator's call: tokens, steps and seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStats:
    """Statistics of a generator's last call of `generate`, without the time of ``on_group``.

    num_completions: number of finished completions. num_wanted: number of requested completions.
    rows: sum of the rows of all decoding steps, including idle rows. prompt_tokens: prompt tokens
    that the model computed, without tokens reused from the previous prompt. tokens: sampled tokens,
    including tokens of unfinished completions and removed tokens. wait_seconds: time in which all
    completions waited for their turn controllers.
    """

    num_slots: int = 0
    num_wanted: int = 0
    num_completions: int = 0
    num_steps: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    postprocess_seconds: float = 0.0
    wait_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Total time of the engine."""
        own = self.prefill_seconds + self.decode_seconds + self.postprocess_seconds
        return own + self.wait_seconds

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second of the engine's total time."""
        return self.tokens / self.seconds if self.seconds else 0.0
