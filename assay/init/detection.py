"""Detect the properties of rows and models that a new configuration depends on."""

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
"""Maximum number of rows read: enough to detect their format, and fast for large files."""
TINY_BYTES = 16 * 2**20
ANSWER_KEYS = ("answer", "solution", "target", "label", "output", "expected", "gold", "completion")
"""Keys that may hold a row's answer."""
_TAG = re.compile(r"<(think|thinking|thought|reasoning|reason|seed:think)>")
_OPEN, _CLOSE = "[THINK]", "[/THINK]"
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,. ]*(/\d+)?%?")


@dataclass(frozen=True, slots=True)
class LookedRows:
    """The first rows of the sources, loaded as by their stage. columns: of the first row."""

    sources: tuple[str, ...]
    rows: Sequence[Any]
    columns: tuple[str, ...]

    @property
    def size(self) -> str:
        """Number of rows, in words."""
        count = len(self.rows)
        return f"at least {count:,} rows" if count >= MOST_ROWS else f"{count:,} rows"


@dataclass(frozen=True, slots=True)
class LookedModel:
    """Facts from a model's tokenizer and configuration.

    think: tags of its reasoning, if any. opens: whether the chat template opens the think block.
    context: maximum tokens of prompt and completion together; None: not stated. is_tiny: the
    weights take a few megabytes. config: the Transformers configuration; for adapters, that of
    their base model.
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
        """Return the number of tokens of a text."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def look_at_rows(sources: Sequence[str], load: Callable[..., Sequence[Any]]) -> LookedRows:
    """Read the first rows of sources; raises DataError for a bad one, as training would."""
    columns = columns_of(sources[0])
    return LookedRows(tuple(sources), list(load(sources, limit=MOST_ROWS)), columns)


def columns_of(source: str) -> tuple[str, ...]:
    """Return the keys of a source's first row; empty if it is not a JSON object."""
    opened = open_source(source)
    for _, number, raw in islice(opened.scan(), 1):
        row = opened.parse(raw, f"{source}:{number}")
        return tuple(row) if isinstance(row, dict) else ()
    raise DataError(message(source, "no rows", "at least one"))


def answer_key(problems: Sequence[Problem], first: str = "answer") -> str | None:
    """Return the key that holds the answer in most problems; None if there is none.

    first: preferred key if rows have several.
    """
    counts = dict.fromkeys((first, *ANSWER_KEYS), 0)
    for problem in problems:
        for key in counts:
            value = problem.spec.get(key)
            counts[key] += isinstance(value, str | int | float) and bool(str(value).strip())
    best = max(counts, key=lambda key: counts[key])
    return best if counts[best] else None


def check_verifier(expression: str, problems: Sequence[Problem]) -> None:
    """Raise VerifierError if built-in verifiers cannot judge the rows, or do not exist.

    User functions are imported by the dry run, which is the next command.
    """
    if ":" in expression:
        return
    options = {"judge": {"url": "http://localhost", "model": "judge"}}
    with VerifierService(expression, options=options) as service:
        for problem in problems:
            service.check_problem(problem)


def fitting_verifier(problems: Sequence[Problem], service: VerifierService) -> str | None:
    """Return the built-in verifier that can judge all problems; None if the choice is unclear."""
    certain = ("code", "instructions", "gym", "countdown", "json_schema")
    for name in certain:
        if _can_judge(name, problems, service):
            return name
    answers = [str(problem.spec.get("answer", "")).strip() for problem in problems]
    # ``math`` is chosen for numbers only; for other text it would compare formulas.
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
    """Read a model's tokenizer and configuration, without weights. Raises ModelError, RunError."""
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
    except Exception as error:  # a third-party library reads a user's files
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
    """Return the tags of a model's reasoning, from special tokens or the chat template."""
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
