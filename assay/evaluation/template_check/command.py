"""Check the chat template of a model: show how training tokenizes and masks a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from assay.config import ModelConfig
from assay.errors import ModelError, message
from assay.evaluation.template_check.checks import CheckLine, Laid, all_checks
from assay.evaluation.template_check.conversation import TemplateConversation
from assay.evaluation.template_check.layout import Token, TokenRow, rl_row, sft_row
from assay.host.terminal import Style, one_line
from assay.model.load import find_eos_ids, find_parts, silence_transformers
from assay.model.sources import ModelSource, read_tokenizer
from assay.session.sampling import sampling_config

STYLES: dict[str, Style] = {"prompt": "dim", "sampled": "green", "injected": "yellow"}
WIDTH = 88


@dataclass(frozen=True)
class TemplateCheck:
    """The test conversation as training tokenizes it, and the results of the checks."""

    model: str
    rows: Sequence[TokenRow]
    checks: Sequence[CheckLine]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "failed" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "model": self.model,
            "passed": self.passed,
            "checks": [check.as_dict() for check in self.checks],
            "rows": [row.as_dict() for row in self.rows],
        }

    def styled(self) -> Iterator[tuple[str, Style]]:
        """Yield the output as pieces of text, each with its terminal style."""
        for row in self.rows:
            trained = sum(token.trained for token in row.tokens)
            yield f"{row.name}: {len(row.tokens)} tokens, {trained} trained on (+)\n", "bold"
            yield from _lines(row.tokens)
            yield "\n", "plain"
        marks: dict[str, Style] = {"ok": "green", "note": "yellow", "failed": "red"}
        for check in self.checks:
            yield f"{check.status:<7}", marks[check.status]
            yield f"{one_line(f'{check.name}: {check.line}')}\n", "plain"

    def __str__(self) -> str:
        return "".join(text for text, _ in self.styled()).rstrip("\n")


def check_template(
    model: str, *, overrides: Sequence[str] = (), trust_run: bool = False
) -> TemplateCheck:
    """Tokenize and mask a test conversation as training does, and check the result; loads no
    weights.

    model: a model folder, a hub name, a run, or a folder that has only a tokenizer. overrides:
    settings in the form ``KEY=VALUE``, such as ``data.think=opened``. For a run, the settings are
    those of the run's configuration. Raises ModelError for a model without a tokenizer or without a
    chat template.
    """
    silence_transformers()
    config = sampling_config(model, (), {"overrides": overrides, "trust_run": trust_run})
    # The weights are not loaded, so that the check is fast for a model of any size.
    source = _source(config.model)
    owner = _described(source)
    tokenizer = read_tokenizer(_tokenizer_source(config.model, source), owner)
    if config.data.template == "base":
        accepted = "'chat', which has a chat template to check"
        raise ModelError(message("data.template", "'base'", accepted))
    chat = config.data.model_copy(update={"template": "chat"})
    config = config.model_copy(update={"data": chat})
    conversation = TemplateConversation.of(config, tokenizer)
    eos_ids = find_eos_ids(owner, tokenizer)
    served = getattr(owner.generation_config, "eos_token_id", None)
    laid = Laid(
        conversation,
        {thinks: rl_row(conversation, thinks, eos_ids) for thinks in conversation.modes},
        {thinks: sft_row(conversation, thinks) for thinks in conversation.modes},
        [served] if isinstance(served, int) else served,
    )
    return TemplateCheck(model, laid.shown, all_checks(laid))


def _source(config: ModelConfig) -> ModelSource:
    """Return the source of a model, or of a folder that has only a tokenizer."""
    folder = Path(config.path).expanduser()
    alone = ModelSource(str(folder.resolve()), trust_remote_code=config.trust_remote_code)
    is_alone = folder.is_dir() and not any(folder.glob("*.gguf")) and alone.has_tokenizer
    return alone if is_alone else find_parts(config)[0]


def _tokenizer_source(config: ModelConfig, source: ModelSource) -> ModelSource:
    if config.tokenizer is None:
        return source
    return ModelSource.of_tokenizer(config.tokenizer, config.trust_remote_code)


def _described(source: ModelSource) -> Any:
    """Return the model's configuration and its generation configuration; None if loading one
    fails."""
    from transformers import AutoConfig, GenerationConfig

    found: list[Any] = []
    for kind in (AutoConfig, GenerationConfig):
        try:
            found.append(kind.from_pretrained(source.place, **source.options()))
        # A folder with only a tokenizer can be checked, so a missing configuration is no error.
        except Exception:  # Transformers raises many types for a damaged or absent file
            found.append(None)
    return SimpleNamespace(config=found[0], generation_config=found[1])


def _lines(tokens: Sequence[Token]) -> Iterator[tuple[str, Style]]:
    """Yield lines of output; each line has adjacent tokens of one kind, and the mark ``+`` for
    trained tokens."""
    before: tuple[str, bool] | None = None
    width = WIDTH
    for token in tokens:
        text, mark = one_line(token.text), (token.kind, token.trained)
        is_new = mark != before
        if is_new or width + len(text) > WIDTH:
            name = token.kind if is_new else ""
            lead = f"  {name:<9}{'+' if token.trained else ' '} "
            yield ("\n" if before else "") + lead, "plain"
            width = 0
        else:
            yield "|", "plain"
        yield text, STYLES[token.kind]
        # A line break in the text starts a new line of output.
        width = WIDTH if token.text.endswith("\n") else width + len(text) + 1
        before = mark
    yield "\n", "plain"
