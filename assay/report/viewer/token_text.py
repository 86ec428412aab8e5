"""Texts of single tokens, decoded with the tokenizer in a run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

Decode = Callable[[list[int]], str]
_TAIL = "\ufffd"


@dataclass
class TokenTexts:
    """Decoder for the tokens of a run. folder: run directory."""

    folder: Path
    _found: tuple[Path, Decode] | None = None
    _lock: Lock = field(default_factory=Lock)

    def pieces(self, tokens: Sequence[int], text: str, model: str | None) -> list[str] | None:
        """Return the text of each token of a completion; None without a matching tokenizer.

        text: text of the completion. model: path of the run's model, which is used if no checkpoint
        has a tokenizer.
        """
        decode = self._decoder(model)
        if decode is None:
            return None
        found = list(piecewise(decode, list(tokens)))
        # A tokenizer that was changed after the run would put colors on wrong characters.
        return found if "".join(found).startswith(text) else None

    def _decoder(self, model: str | None) -> Decode | None:
        with self._lock:
            if self._found is None or not self._found[0].is_file():
                self._found = next(self._load(model), None)
            return None if self._found is None else self._found[1]

    def _load(self, model: str | None) -> Iterator[tuple[Path, Decode]]:
        from tokenizers import Tokenizer

        folders = sorted((self.folder / "checkpoints").glob("step-*"), reverse=True)
        folders += [Path(model)] if model else []
        for path in (folder / "tokenizer.json" for folder in folders):
            if not path.is_file():
                continue
            try:
                tokenizer: Any = Tokenizer.from_file(str(path))
            # The tokenizers library raises a plain `Exception` for a damaged tokenizer file.
            except Exception:  # from tokenizers
                continue
            yield path, partial(tokenizer.decode, skip_special_tokens=False)


def piecewise(decode: Decode, tokens: list[int]) -> Iterator[str]:
    """Yield the text that each token adds to the decoded text.

    A token that ends inside a character adds nothing, and the token that completes the character
    adds the whole character.
    """
    # Tokenizers strip the space before the first token of a text.
    # Each token is therefore decoded after the tokens of the previous piece.
    # Decoding each token after all earlier tokens would take quadratic time.
    start, done = 0, 0
    for end in range(1, len(tokens) + 1):
        before, now = decode(tokens[start:done]), decode(tokens[start:end])
        is_whole = not now.endswith(_TAIL) or end == len(tokens)
        if len(now) > len(before) and is_whole:
            yield now[len(before) :]
            start, done = done, end
        else:
            yield ""
