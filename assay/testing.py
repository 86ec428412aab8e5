"""Test fakes, public for users' tests: a tiny model, a byte tokenizer, a scripted generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.config import SamplingConfig
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from assay.model.weights import Weights

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """Return a tokenizer of UTF-8 bytes; 256 is ``<|bos|>``, 257 ``<|eos|>``, 258 ``<|pad|>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {letter: byte for byte, letter in enumerate(_byte_letters())}
    # A byte-level BPE without merges has exactly one token per byte.
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>"
    )
    fast.chat_template = chat_template
    return fast


def _byte_letters() -> list[str]:
    """Return the character of each byte in byte-level tokenizers; a printable byte is itself."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 256 + hidden.index(byte)) for byte in range(256)]


def tiny_model(
    vocab_size: int = 259,
    seed: int = 0,
    hidden_size: int = 32,
    num_layers: int = 2,
    max_positions: int = 512,
    family: str = "llama",
    eos_token_id: int | None = 257,
) -> PreTrainedModel:
    """Return a fresh float32 decoder (``llama``, ``qwen2``, ``qwen3`` or ``gpt2``) in eval mode."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        # Fewer key heads than query heads, so that tests cover grouped-query attention.
        "num_key_value_heads": 2,
        "head_dim": hidden_size // 4,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": True,
    }
    # GPT-2's configuration has other names for the same sizes.
    if family == "gpt2":
        sizes = {
            "vocab_size": vocab_size,
            "n_embd": hidden_size,
            "n_layer": num_layers,
            "n_head": 4,
            "n_positions": max_positions,
        }
    # Special tokens have explicit ids: a default id such as GPT-2's 50256 is outside the
    # vocabulary.
    tokens = {"bos_token_id": None, "eos_token_id": eos_token_id, "pad_token_id": None}
    config = AutoConfig.for_model(family, **sizes, **tokens)
    # fork_rng restores the caller's random state; devices=[] keeps it from initializing CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        # The weights are initialized wider than the default of 0.02, because next-token
        # distributions must differ between contexts.
        with torch.no_grad():
            for _, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0.0, 0.2)
    return model.float().eval()


def save_tiny_model(folder: Path | str, chat_template: str | None = None, **sizes: Any) -> Path:
    """Save `tiny_model` and `byte_tokenizer` in Hugging Face layout and return the folder."""
    tiny_model(**sizes).save_pretrained(folder)
    byte_tokenizer(chat_template).save_pretrained(folder)
    return Path(folder)


class InjectedText(str):
    """Injected text, such as a tool's result. Injected text begins a turn."""


class ScriptedGenerator:
    """A generator of scripted completions: ``script(problem, sibling)`` returns the text.

    A script may also return a list of texts, in which `InjectedText` marks injected text.
    Log-probabilities are constant. The tokens are the bytes of the text, as in `byte_tokenizer`.
    The scripted generator implements the generator protocol.
    """

    exact = False
    gives_model_logprobs = False

    def __init__(
        self,
        script: Callable[[Problem, int], str | Sequence[str]],
        logprob: float = -1.0,
        think: ThinkFormat | None = None,
    ) -> None:
        self.script = script
        self.logprob = logprob
        self.think = think or ThinkFormat()
        self.policy_version = 0

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: object = None,
    ) -> list[Group]:
        """Return one group of scripted completions per problem; ``cutoff`` has no effect."""
        numbers = range(first_sibling, first_sibling + group_size)
        groups: list[Group] = []
        for problem in problems:
            question = problem.question
            prompt = Prompt(question, _bytes_of(question), self.think)
            siblings = tuple(self._complete(problem, n) for n in numbers)
            groups.append(Group(problem, prompt, siblings))
            if on_group is not None:
                on_group(groups[-1])
        return groups

    def sleep(self) -> None:
        """Do nothing: a scripted generator holds no memory."""

    def load_policy(self, weights: Weights) -> None:
        """Store the policy's version; the weights have no effect on the script."""
        self.policy_version = weights.version

    def _complete(self, problem: Problem, sibling: int) -> Completion:
        script = self.script(problem, sibling)
        pieces = [script] if isinstance(script, str) else list(script)
        tokens = [_bytes_of(piece) for piece in pieces]
        sampled = np.repeat(
            [not isinstance(one, InjectedText) for one in pieces], [*map(len, tokens)]
        )
        ends = np.cumsum([len(one) for one in tokens]).tolist()
        turns = [n for n, piece in enumerate(pieces) if isinstance(piece, InjectedText) and n]
        places = [0, *np.cumsum([len(piece) for piece in pieces]).tolist()]
        said = [
            (places[n], places[n + 1])
            for n, piece in enumerate(pieces)
            if not isinstance(piece, InjectedText)
        ]
        return Completion(
            id=f"{problem.group_id}/{sibling}",
            text="".join(pieces),
            tokens=np.concatenate(tokens),
            behavior_logprobs=np.where(sampled, self.logprob, 0.0).astype(np.float32),
            sampled=sampled,
            policy_version=self.policy_version,
            think=self.think,
            turn_ends=tuple(ends[n - 1] for n in turns) + ((ends[-1],) if turns else ()),
            said=tuple(said) if turns else (),
        )


def _bytes_of(text: str) -> np.ndarray:
    # A prompt and a completion need at least one token, even for an empty text.
    return np.frombuffer(text.encode() or b" ", np.uint8).astype(np.int32)
