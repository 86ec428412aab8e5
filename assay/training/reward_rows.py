"""Render labelled rows exactly as the reward model's verifier renders text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay.config import DataConfig, RewardModelConfig, TrainConfig
from assay.data.labelled import LOADERS, LabelledCompletion, LabelledSteps, MarginPair
from assay.data.rowset import RowSet
from assay.errors import DataError, VerifierError, message
from assay.model.score_batch import ScoredGroup, ScoredText
from assay.reward_models.steps import Places, split_steps
from assay.reward_models.text import ConversationEncoder
from assay.types import Completion, Message, Problem, ThinkFormat

SEPARATORS = {"newline": "\n", "blank_line": "\n\n"}


@dataclass(frozen=True)
class OpenedRows:
    """Training and held-out rows for one kind of reward model, validated without a model. heldout:
    None without held-out rows."""

    rows: RowSet[Any]
    heldout: RowSet[Any] | None


def open_rows(config: TrainConfig) -> OpenedRows:
    """Open the rows of a reward-model stage; a bad row raises DataError or is skipped."""
    settings = config.reward_model
    assert settings is not None
    load, on_bad_row = LOADERS[settings.kind], config.data.on_bad_row
    rows, heldout = load(settings.rows, on_bad_row=on_bad_row), None
    if settings.heldout:
        limit = config.evaluation.max_problems
        heldout = load(settings.heldout, on_bad_row=on_bad_row, limit=limit)
    return OpenedRows(rows, heldout)


class RowReader:
    """Renders rows for one kind of reward model to tokens and the positions of scores.

    max_positions: context length of the model in tokens; None if unknown.
    """

    def __init__(
        self,
        settings: RewardModelConfig,
        data: DataConfig,
        tokenizer: Any,
        max_positions: int | None,
    ) -> None:
        self.settings = settings
        self.data = data
        self.think = ThinkFormat("off", data.think_open, data.think_close)
        is_process = settings.kind == "process"
        self.encoder = ConversationEncoder(
            tokenizer,
            "reward_model",
            format=settings.format,
            plain_template=settings.plain_template,
            max_tokens=settings.max_tokens or max_positions,
            # A too long text is refused and not truncated,
            # because the verifier scores the end of the whole text.
            too_long="not_judged",
            step_tag=settings.step_tag if is_process else "",
        )

    @property
    def options(self) -> dict[str, Any]:
        """Verifier options with which a trained model reads texts in the format of its training."""
        settings = self.settings
        options: dict[str, Any] = {"format": self.encoder.format, "reads": "all"}
        if self.encoder.format == "plain":
            options["plain_template"] = settings.plain_template
        if settings.max_tokens is not None:
            options["max_tokens"] = settings.max_tokens
        if settings.kind != "process":
            return options | {"head": "scalar" if settings.kind == "preference" else "binary"}
        names = ("split", "step_tag", "step_join")
        return options | {"style": "classifier"} | {name: getattr(settings, name) for name in names}

    def read_all(self, rows: RowSet[Any]) -> tuple[list[ScoredGroup], list[str]]:
        """Render every row; return (groups, errors of skipped rows).

        Raises DataError for a bad row if ``data.on_bad_row`` is ``stop``, and if no row is valid.
        """
        groups: list[ScoredGroup] = []
        complaints = list(rows.skipped)
        for row in rows:
            try:
                groups.append(self.read(row))
            except DataError as error:
                if self.data.on_bad_row == "stop":
                    raise
                complaints.append(str(error))
        if not groups:
            found = f"{len(complaints)} bad rows and no good one, the first: {complaints[0]}"
            raise DataError(message("reward_model.rows", found, "at least one good row"))
        return groups, complaints

    def read(self, row: MarginPair | LabelledCompletion | LabelledSteps) -> ScoredGroup:
        """Render one row; raises DataError if it is too long or has no steps."""
        if isinstance(row, MarginPair):
            pair = row.pair
            texts = [
                self._text(pair.prompt, text, row.source) for text in (pair.chosen, pair.rejected)
            ]
            margin = row.margin if self.settings.margins else 0.0
            both = tuple(
                _at_end(tokens, label) for tokens, label in zip(texts, (1.0, 0.0), strict=True)
            )
            return ScoredGroup(both, margin, row.source)
        if isinstance(row, LabelledCompletion):
            tokens = self._text(row.prompt, row.completion, row.source)
            text = _at_end(tokens, row.label)
            if self.settings.every_token:
                first = self._num_prompt_tokens(row, tokens)
                places = np.arange(first, len(tokens), dtype=np.int32)
                labels = np.full(len(places), row.label, np.float32)
                text = ScoredText(text.tokens, places, labels)
            return ScoredGroup((text,), source=row.source)
        return ScoredGroup((self._steps(row),), source=row.source)

    def _text(self, prompt: str | tuple[Message, ...], text: str, source: str) -> list[int]:
        try:
            encoded = self.encoder.encode_text(Problem("row", prompt), text, self.think)
        except VerifierError as error:
            raise DataError(f"{source} prompt: {error}") from error
        if encoded.tokens is None:
            raise DataError(self._too_long(source, encoded.note.partition(";")[0]))
        return encoded.tokens

    def _num_prompt_tokens(self, row: LabelledCompletion, tokens: Sequence[int]) -> int:
        """Return the index of the completion's first token, after the tokens of the prompt."""
        before = self.encoder.prompt_tokens(Problem("row", row.prompt), self.think)
        # A tokenizer may merge the end of the prompt with the start of the completion,
        # so the tokens of both encodings are compared.
        same = (a == b for a, b in zip(before, tokens[:-1], strict=False))
        return next(
            (index for index, equal in enumerate(same) if not equal),
            min(len(before), len(tokens) - 1),
        )

    def _steps(self, row: LabelledSteps) -> ScoredText:
        split = self.settings.split
        text = row.completion or SEPARATORS.get(split, split).join(row.steps)
        spec = {} if row.step_ends is None else {"step_ends": list(row.step_ends)}
        problem = Problem("row", row.prompt, spec)
        completion = Completion.from_text(text, think=self.think)
        if self.settings.step_ends_in == "tokens" and row.step_ends is not None:
            # The text is encoded without special tokens,
            # because `step_ends` count only the tokens of the text.
            ids = self.encoder.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            completion = replace(completion, tokens=np.array(ids, np.int32))
        places = Places(completion, self.encoder.tokenizer)
        if row.step_ends is not None and row.step_ends[-1] >= places.count:
            unit = self.settings.step_ends_in
            accepted = f"indices below {places.count}, the number of {unit} (step_ends_in)"
            raise DataError(message(f"{row.source} step_ends", row.step_ends[-1], accepted))
        found = split_steps(problem, completion, places, split, "all")
        # Steps cut at the row's ``step_ends`` include tags and separators,
        # which the verifier never reads.
        # The verifier's own split is used if its steps end at the same positions, as in rows from
        # label_steps.
        own = split_steps(Problem("row", row.prompt), completion, places, split, "all")
        if [step.end for step in own] == [step.end for step in found]:
            found = own
        if len(found) != len(row.labels):
            where = f"{row.source} labels"
            accepted = f"{len(found)}, one for each step that split = {split!r} shows"
            remedy = "give step_ends, or set reward_model.split to the separator of steps"
            raise DataError(message(where, f"{len(row.labels)} labels", accepted, remedy))
        texts, join = [step.text for step in found], self.settings.step_join
        tokens, positions = self.encoder.encode_steps(problem, texts, self.think, join)
        limit = self.encoder.max_tokens
        if limit is not None and len(tokens) > limit:
            raise DataError(self._too_long(row.source, f"{len(tokens)} tokens"))
        return ScoredText(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            np.array(row.labels, np.float32),
        )

    def _too_long(self, source: str, found: str) -> str:
        limit = "reward_model.max_tokens or the model's context"
        accepted = f"at most {self.encoder.max_tokens}, the prompt's included, by {limit}"
        remedy = "shorten it, or set data.on_bad_row = 'skip'"
        return message(f"{source} completion", found, accepted, remedy)


def _at_end(tokens: Sequence[int], label: float) -> ScoredText:
    """Return a text that is scored at its last token."""
    last = np.array([len(tokens) - 1], np.int32)
    return ScoredText(np.array(tokens, np.int32), last, np.array([label], np.float32))
