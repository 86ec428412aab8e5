"""Detect the properties of rows and models that determine a new configuration."""

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
from assay.data.forms import recognize
from assay.data.sources import open_source
from assay.errors import DataError, ModelError, VerifierError, cause, message
from assay.model.adapters import ADAPTER_FILE, base_of
from assay.model.load import silence_transformers
from assay.model.sources import ModelSource, read_tokenizer
from assay.run.names import find_checkpoint
from assay.types import Problem
from assay.verify.service import VerifierService

MOST_ROWS = 2000
"""Maximum number of rows read. The number is enough to detect a format, and small enough for large
files to be fast."""
TINY_BYTES = 16 * 2**20
ANSWER_KEYS = ("answer", "solution", "target", "label", "output", "expected", "gold", "completion")
"""Keys that may contain a row's answer."""
_TAG = re.compile(r"<(think|thinking|thought|reasoning|reason|seed:think)>")
_OPEN, _CLOSE = "[THINK]", "[/THINK]"
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,. ]*(/\d+)?%?")


@dataclass(frozen=True, slots=True)
class LookedRows:
    """The first rows of the sources, parsed as the training stage parses rows.

    columns: keys of the first row.
    """

    sources: tuple[str, ...]
    rows: Sequence[Any]
    columns: tuple[str, ...]

    @property
    def size(self) -> str:
        """Text with the number of rows."""
        count = len(self.rows)
        return f"at least {count:,} rows" if count >= MOST_ROWS else f"{count:,} rows"


@dataclass(frozen=True, slots=True)
class LookedModel:
    """Properties of a model, read from its tokenizer and configuration.

    chat: whether the tokenizer has a chat template. think: opening and closing tag of the model's
    reasoning, or None. opens: whether the chat template opens the think block. context: maximum
    number of tokens of prompt and completion together, or None if unknown. is_tiny: whether the
    weights take less than 16 MiB. config: Transformers configuration; for adapters, the base
    model's configuration.
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
        """Return the number of tokens of a text, without special tokens."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def look_at_rows(sources: Sequence[str], load: Callable[..., Sequence[Any]]) -> LookedRows:
    """Read the first rows of sources; raises DataError for a bad row, as training would."""
    columns = columns_of(sources[0])
    return LookedRows(tuple(sources), list(load(sources, limit=MOST_ROWS)), columns)


def columns_of(source: str) -> tuple[str, ...]:
    """Return the keys of a source's first row; empty if the row is not a JSON object."""
    return tuple(_first_row(source))


def verifier_of_form(source: str) -> str:
    """Return the first verifier of the published form of a source's first row, or ""."""
    form = recognize(_first_row(source))
    name = form.verifier.partition(",")[0] if form is not None else ""
    # A judge needs an endpoint, which no row names.
    return "" if name in ("any", "judge") else name


def _first_row(source: str) -> dict[str, Any]:
    opened = open_source(source)
    for _, number, raw in islice(opened.scan(), 1):
        row = opened.parse(raw, f"{source}:{number}")
        return row if isinstance(row, dict) else {}
    raise DataError(message(source, "no rows", "at least one"))


def answer_key(problems: Sequence[Problem], first: str = "answer") -> str | None:
    """Return the key under which most problems have an answer, or None.

    first: key that is preferred if several keys occur in equally many problems.
    """
    # max() returns the first of several maxima, so earlier keys are preferred.
    counts = dict.fromkeys((first, *ANSWER_KEYS), 0)
    for problem in problems:
        for key in counts:
            value = problem.spec.get(key)
            counts[key] += isinstance(value, str | int | float) and bool(str(value).strip())
    best = max(counts, key=lambda key: counts[key])
    return best if counts[best] else None


def check_verifier(expression: str, problems: Sequence[Problem]) -> None:
    """Raise VerifierError for an unknown built-in verifier, or for rows it cannot judge."""
    # The reward function may not exist yet, because `assay init` writes its file afterwards.
    # The dry run, which is the next command, imports and tries the reward function.
    if ":" in expression:
        return
    options = {"judge": {"url": "http://localhost", "model": "judge"}}
    with VerifierService(expression, options=options) as service:
        for problem in problems:
            service.check_problem(problem)


def fitting_verifier(
    problems: Sequence[Problem], service: VerifierService, of_form: str = ""
) -> str | None:
    """Return the built-in verifier that fits all problems; None if the choice is unclear.

    of_form: usual verifier for the data set format of these rows, used if no other verifier is
    certain.
    """
    # Some rows of a mixed set name their own verifier.
    problems = [problem for problem in problems if problem.verifier is None]
    # Each of these verifiers requires row keys that no other verifier reads.
    # If one of these verifiers fits the rows, no other verifier is possible.
    certain = ("code", "instructions", "gym", "countdown", "json_schema")
    for name in certain:
        if _can_judge(name, problems, service):
            return name
    answers = [str(problem.spec.get("answer", "")).strip() for problem in problems]
    # The verifier `math` would parse text as formulas, so all answers must be numbers.
    if all(map(_NUMBER.fullmatch, answers)):
        return "math"
    likely = (of_form, "choice") if of_form else ("choice",)
    return next((name for name in likely if _can_judge(name, problems, service)), None)


def _can_judge(name: str, problems: Sequence[Problem], service: VerifierService) -> bool:
    try:
        for problem in problems:
            service.check_problem(replace(problem, verifier=name))
    except VerifierError:
        return False
    return True


def look_at_model(path: str) -> LookedModel:
    """Read a model's properties without loading weights. Raises ModelError or RunError."""
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
    """Return the tags of a model's reasoning, found in special tokens or the chat template."""
    template = tokenizer.chat_template
    texts = [*tokenizer.get_added_vocab(), template if isinstance(template, str) else ""]
    for text in texts:
        for name in _TAG.findall(text):
            if any(f"</{name}>" in other for other in texts):
                return f"<{name}>", f"</{name}>"
    return (_OPEN, _CLOSE) if _OPEN in texts and _CLOSE in texts else None


def _opens(tokenizer: Any, tags: tuple[str, str]) -> bool:
    """Whether the chat template ends a prompt with the opening think tag."""
    data = DataConfig(think="free", think_open=tags[0], think_close=tags[1])
    problem = Problem("look", "What is 1+1?")
    return PromptRenderer(tokenizer, data).render(problem).think.mode == "opened"
