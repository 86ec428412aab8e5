"""What rows and models show of themselves, for the configuration that is written for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from assay.config import DataConfig
from assay.data.chat import PromptRenderer
from assay.data.sources import open_source
from assay.errors import DataError, ModelError, VerifierError, cause, message
from assay.model.adapters import ADAPTER_FILE, base_of
from assay.model.load import silence_transformers
from assay.model.sources import ModelSource, read_tokenizer
from assay.run.names import find_checkpoint
from assay.types import Problem
from assay.verify.service import VerifierService

MOST_ROWS = 2000
"""Rows that are read: enough to see what they are, and quick for a large file."""
TINY_BYTES = 16 * 2**20
ANSWER_KEYS = ("answer", "solution", "target", "label", "output", "expected", "gold", "completion")
"""Keys under which rows have an answer; a reward that is written reads the one they have."""
_TAG = re.compile(r"<(think|thinking|thought|reasoning|reason|seed:think)>")
_OPEN, _CLOSE = "[THINK]", "[/THINK]"
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,. ]*(/\d+)?%?")


@dataclass(frozen=True, slots=True)
class LookedRows:
    """The first rows of the sources, read as their stage reads them. columns: of the first one."""

    sources: tuple[str, ...]
    rows: Sequence[Any]
    columns: tuple[str, ...]

    @property
    def size(self) -> str:
        """How many there are, in words."""
        count = len(self.rows)
        return f"at least {count:,} rows" if count >= MOST_ROWS else f"{count:,} rows"


@dataclass(frozen=True, slots=True)
class LookedModel:
    """What a model's tokenizer and configuration say.

    think: the tags of its reasoning, where it has some. opens: its chat template opens the block.
    context: tokens of prompt and completion together; None: not stated. is_tiny: its weights are a
    few megabytes. config: of Transformers, its base's where it has adapters.
    """

    path: str
    tokenizer: Any
    chat: bool
    think: tuple[str, str] | None
    opens: bool
    context: int | None
    is_tiny: bool
    config: Any
    has_adapters: bool

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def look_at_rows(sources: Sequence[str], load: Callable[..., Sequence[Any]]) -> LookedRows:
    """Read the first rows of sources; raises DataError for a bad one, as training would."""
    columns = columns_of(sources[0])
    return LookedRows(tuple(sources), list(load(sources, limit=MOST_ROWS)), columns)


def columns_of(source: str) -> tuple[str, ...]:
    """Return the keys of a source's first row; none where it is not a row of keys."""
    opened = open_source(source)
    for _, number, raw in islice(opened.scan(), 1):
        row = opened.parse(raw, f"{source}:{number}")
        return tuple(row) if isinstance(row, dict) else ()
    raise DataError(message(source, "no rows", "at least one"))


def answer_key(problems: Sequence[Problem], first: str = "answer") -> str | None:
    """Return the key of the problems' answers: the one that most of them have; None: there is none.

    first: the key that is taken where the rows have several.
    """
    counts = dict.fromkeys((first, *ANSWER_KEYS), 0)
    for problem in problems:
        for key in counts:
            value = problem.spec.get(key)
            counts[key] += isinstance(value, str | int | float) and bool(str(value).strip())
    best = max(counts, key=lambda key: counts[key])
    return best if counts[best] else None


def check_verifier(expression: str, problems: Sequence[Problem]) -> None:
    """Raise VerifierError where built-in verifiers cannot judge the rows, or are none.

    A function of the user's is imported by the dry run, which is the next command.
    """
    if ":" in expression:
        return
    options = {"judge": {"url": "http://localhost", "model": "judge"}}
    with VerifierService(expression, options=options) as service:
        for problem in problems:
            service.check_problem(problem)


def fitting_verifier(problems: Sequence[Problem], service: VerifierService) -> str | None:
    """Return the built-in verifier that can judge all problems; None where none is certain.

    ``math`` is chosen for numbers alone: of other text it would say whether it is the same formula.
    """
    certain = ("code", "instructions", "gym", "countdown", "json_schema")
    for name in certain:
        if _can_judge(name, problems, service):
            return name
    answers = [str(problem.spec.get("answer", "")).strip() for problem in problems]
    if all(map(_NUMBER.fullmatch, answers)):
        return "math"
    return "choice" if _can_judge("choice", problems, service) else None


def _can_judge(name: str, problems: Sequence[Problem], service: VerifierService) -> bool:
    try:
        for problem in problems:
            service.check_problem(replace(problem, verifier=name))
    except VerifierError:
        return False
    return True


def look_at_model(path: str) -> LookedModel:
    """Read a model's tokenizer and configuration, not its weights; raises ModelError, RunError."""
    from transformers import AutoConfig

    silence_transformers()
    place = str(find_checkpoint(path) or path)
    folder = Path(place).expanduser()
    base, revision = (place, None)
    has_adapters = (folder / ADAPTER_FILE).is_file()
    if has_adapters:
        base, revision = base_of(folder)
    source = ModelSource.find(base, revision)
    try:
        config: Any = AutoConfig.from_pretrained(source.place, **source.options())
    except Exception as error:  # a foreign library reads foreign files: told in one line
        raise ModelError(f"model {path}: cannot be read ({cause(error)})") from error
    tokenizer = read_tokenizer(source, SimpleNamespace(config=config))
    think = think_tags(tokenizer)
    shape = config.get_text_config()
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return LookedModel(
        path=path,
        tokenizer=tokenizer,
        chat=bool(tokenizer.chat_template),
        think=think,
        opens=think is not None and _opens(tokenizer, think),
        context=getattr(shape, "max_position_embeddings", None),
        is_tiny=0 < size < TINY_BYTES and not has_adapters,
        config=config,
        has_adapters=has_adapters,
    )


def think_tags(tokenizer: Any) -> tuple[str, str] | None:
    """Return the tags of a model's reasoning: tokens of its own, or in its chat template."""
    template = tokenizer.chat_template
    texts = [*tokenizer.get_added_vocab(), template if isinstance(template, str) else ""]
    for text in texts:
        for name in _TAG.findall(text):
            if any(f"</{name}>" in other for other in texts):
                return f"<{name}>", f"</{name}>"
    return (_OPEN, _CLOSE) if _OPEN in texts and _CLOSE in texts else None


def _opens(tokenizer: Any, tags: tuple[str, str]) -> bool:
    """Whether the chat template ends a prompt with the open tag."""
    data = DataConfig(think="free", think_open=tags[0], think_close=tags[1])
    problem = Problem("look", "What is 1+1?")
    return PromptRenderer(tokenizer, data).render(problem).think.mode == "opened"
