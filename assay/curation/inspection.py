"""`assay data inspect`: describe the forms, faults, repeats and lengths of rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os.path import basename
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import Field

from assay.config import DataConfig, holds_text, read_section
from assay.config.section import Natural, Section, Text
from assay.config.toml_text import apply_override
from assay.curation.decontaminate import Share
from assay.data.chat import PromptRenderer
from assay.data.difficulty_spread import DifficultySpread
from assay.data.forms import ASSAY, Form, nearest_form, recognize
from assay.data.leaked_examples import HeldoutTexts, Leak, text_of_example
from assay.data.overlap import (
    NearDuplicate,
    NearQuestions,
    holds_own_answer,
    normalize,
    states_own_answer,
)
from assay.data.problems import load_problems
from assay.data.rows import PROMPT_KEYS, copy_row, read_problem
from assay.data.source import UNREAD, Source
from assay.data.sources import open_source
from assay.errors import DataError, ModelError, VerifierError, cause, message
from assay.host.terminal import lined
from assay.report.loaded import load_run
from assay.types import Problem
from assay.verify.service import VerifierService

# The verifier of the rows of a form that several verifiers judge, or that names none.
DEFAULT_VERIFIER = "math"
_MAX_REASONS = 5
# Checking a row calls no judge, but a judge's settings must be complete.
_OPTIONS = {"judge": {"url": "http://localhost", "model": "judge"}}


class InspectSettings(Section):
    """Describe rows: forms, verifiers, refused rows, repeats, leaked answers, long prompts.

    Nothing is written.
    """

    inputs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows: files, ``hf:...``, ``gym:...``, or output folders of data transforms."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out rows. Rows that repeat one of their questions are counted."""
    near_duplicate_overlap: Share = 0.8
    """A row nearly repeats a held-out question if it contains at least this share of the question's
    8-grams."""
    near_duplicate_similarity: Share | None = 0.5
    """A row is similar to a held-out question if the Jaccard index of their 3-grams is at least
    this value. Questions of fewer than 8 words are not compared. None: not compared."""
    max_listed: Annotated[int, Field(ge=0)] = 10
    """Number of nearly repeated and similar questions to list per source, nearest first. With
    ``--json``, all are listed."""
    shots: tuple[Text, ...] = ()
    """Sources of few-shot examples. Held-out questions and long held-out answers in them are
    listed. A prompt template in a ``.txt`` file is a source too."""
    label: Text = "difficulty"
    """Key of a row's difficulty: counts of a model's samples, or a number such as MATH's
    ``level``."""
    pass_rates_of: Text | None = None
    """Run whose rollout log has the pass rates of rows without the key `label`, by problem id."""
    model: Text | None = None
    """Model whose tokenizer and chat template measure the prompts. Its weights are not loaded."""
    max_tokens: Natural | None = None
    """Maximum length of a prompt in tokens. None: the model's context."""
    verifier: Text | None = None
    """Verifier of rows without a verifier of their own. None: the verifier of the row's form."""


def settings_of(tree: dict[str, Any], overrides: Sequence[str]) -> InspectSettings:
    """Parse the settings of `inspect_rows` from command-line arguments. Raises ConfigError."""
    has_text = partial(holds_text, model=InspectSettings)
    overridden = [apply_override(tree, override, has_text) for override in overrides]
    return read_section(InspectSettings, tree, "assay data inspect", None, overridden)


@dataclass
class SourceFacts:
    """Counts of one source's rows.

    forms: rows by form. verifiers: usable rows by verifier. refused: rows that training would
    refuse, by reason; the reason of the first row names its location. own_answer: usable rows whose
    prompt contains the answer. stated_answer: locations of usable rows whose prompt states it, as
    in "the answer is 5". repeats: usable rows with the question of an earlier row. heldout_same:
    usable rows that repeat a held-out question exactly. near: usable rows that repeat one nearly,
    or are similar to one. difficulty: distribution of the usable rows' difficulty. too_long: usable
    rows above the limit. longest: tokens of the longest prompt. shapes: the first reason of each
    shape.
    """

    source: str
    rows: int = 0
    usable: int = 0
    forms: Counter[str] = field(default_factory=Counter[str])
    verifiers: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    own_answer: int = 0
    stated_answer: list[str] = field(default_factory=list[str])
    repeats: int = 0
    heldout_same: int = 0
    near: list[NearDuplicate] = field(default_factory=list[NearDuplicate])
    difficulty: DifficultySpread = field(default_factory=DifficultySpread)
    too_long: int = 0
    longest: int = 0
    shapes: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def heldout_near(self) -> int:
        """Number of rows that repeat a held-out question nearly, by 8-grams."""
        return sum(not one.is_similar for one in self.near)

    @property
    def heldout_similar(self) -> int:
        """Number of rows that are only similar to a held-out question, by 3-grams."""
        return len(self.near) - self.heldout_near

    def as_dict(self, has_heldout: bool) -> dict[str, Any]:
        """Return JSON values. Facts about held-out rows are null without held-out rows."""
        # `dataclasses.asdict` cannot copy a Counter.
        row = {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
            if name != "shapes"
        }
        row["difficulty"] = self.difficulty.as_dict() if self.difficulty.is_known else None
        row["heldout_near"], row["heldout_similar"] = self.heldout_near, self.heldout_similar
        row["near"] = [dataclasses.asdict(one) for one in self.near]
        for name in ("heldout_same", "heldout_near", "heldout_similar", "near"):
            row[name] = row[name] if has_heldout else None
        return row

    def refuse(self, where: str, text: str) -> None:
        """Count a refused row. Error messages that differ only in the value quoted from the row
        count as one reason."""
        # A fault without an accepted value, such as broken JSON, has only its place and cause.
        found, _, accepted = text.replace(where, "", 1).partition("accepted:")
        shape = f"{found.partition('found')[0]}|{accepted}"
        self.refused[self.shapes.setdefault(shape, text)] += 1


@dataclass
class Inspection:
    """Result of `inspect_rows`.

    max_tokens: limit of a prompt, or None without a model. leaks: held-out rows in few-shot
    examples. num_shots: number of few-shot examples, or None without any.
    """

    sources: list[SourceFacts]
    heldout: tuple[str, ...]
    max_tokens: int | None
    has_lengths: bool
    leaks: list[Leak] = field(default_factory=list[Leak])
    num_shots: int | None = None
    max_listed: int = 10

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict of JSON values. Facts that were not measured are null."""
        rows: list[dict[str, Any]] = []
        for facts in self.sources:
            row = facts.as_dict(bool(self.heldout))
            row["longest"] = row["longest"] if self.has_lengths else None
            row["too_long"] = row["too_long"] if self.max_tokens is not None else None
            rows.append(row)
        leaks = [dataclasses.asdict(one) for one in self.leaks]
        found: dict[str, Any] = {"sources": rows, "heldout": list(self.heldout)}
        return {**found, "leaks": leaks, "max_tokens": self.max_tokens}

    def __str__(self) -> str:
        lines = [line for facts in self.sources for line in self._lines(facts)]
        if self.num_shots is not None:
            lines.append(f"few-shot examples: {self.num_shots}, {len(self.leaks)} leaks")
            lines += [f"  {leak}" for leak in self.leaks]
        return lined(lines)

    def _lines(self, facts: SourceFacts) -> list[str]:
        refused = facts.rows - facts.usable
        lines = [
            f"{facts.source}: {facts.rows} rows, {facts.usable} usable, {refused} refused",
            f"  form: {_counted(facts.forms)}",
        ]
        if facts.usable:
            lines.append(f"  judged by: {_counted(facts.verifiers)}")
        reasons = facts.refused.most_common()
        lines += [f"  refused: {count} like {text}" for text, count in reasons[:_MAX_REASONS]]
        if len(reasons) > _MAX_REASONS:
            lines.append(f"  refused for {len(reasons) - _MAX_REASONS} other reasons")
        stated = facts.stated_answer
        first = f" (the first: {stated[0]})" if stated else ""
        lines.append(f"  prompts that contain their own answer: {facts.own_answer}")
        lines.append(f"  prompts that state their own answer: {len(stated)}{first}")
        lines.append(f"  questions of an earlier row: {facts.repeats}")
        if facts.difficulty.is_known:
            lines.append(f"  difficulty: {facts.difficulty}")
        if self.heldout:
            counts = f"{facts.heldout_same} repeated exactly, {facts.heldout_near} nearly"
            lines.append(f"  held-out questions: {counts}, {facts.heldout_similar} similar")
            nearest = sorted(facts.near, key=lambda one: (one.is_similar, -one.share))
            lines += [f"    {one}" for one in nearest[: self.max_listed]]
            if len(nearest) > self.max_listed:
                lines.append(f"    and {len(nearest) - self.max_listed} more (all with --json)")
        if self.max_tokens is not None:
            lines.append(f"  prompts above {self.max_tokens} tokens: {facts.too_long}")
        if self.has_lengths:
            lines.append(f"  longest prompt: {facts.longest} tokens")
        return lines


def _counted(counts: Counter[str]) -> str:
    many = counts.most_common()
    if len(many) == 1:
        return many[0][0]
    return ", ".join(f"{name} ({count})" for name, count in many)


def inspect_rows(settings: InspectSettings) -> Inspection:
    """Read every row of the sources once, as training reads it.

    Raises DataError for a row of no form, for a source without rows, and for held-out rows that
    cannot be read.
    """
    count, limit = _token_counter(settings)
    heldout = list(_problems_of(settings.heldout))
    questions = NearQuestions(settings.near_duplicate_overlap, settings.near_duplicate_similarity)
    for problem in heldout:
        questions.add(normalize(problem))
    rates = {} if settings.pass_rates_of is None else _pass_rates(settings.pass_rates_of)
    seen: set[int] = set()
    found: list[SourceFacts] = []
    num_rated = 0
    with VerifierService(settings.verifier or DEFAULT_VERIFIER, options=_OPTIONS) as service:
        for name in settings.inputs:
            opened, facts = open_source(name), SourceFacts(name)
            for position, number, raw in opened.scan():
                facts.rows += 1
                where = f"{opened.label}:{number}"
                problem = _usable(opened, position, raw, where, settings, service, facts)
                if problem is None:
                    continue
                facts.usable += 1
                _compare(problem, facts, seen, questions, heldout)
                own = problem.spec.get(settings.label)
                if own is None:
                    # A run names rows without an id by the base name of their file.
                    own = rates.get(problem.id) or rates.get(basename(problem.id))
                    num_rated += own is not None
                facts.difficulty.add(own, problem.tags, settings.label)
                length = count(problem) if count else 0
                facts.longest = max(facts.longest, length)
                facts.too_long += limit is not None and length > limit
            if not facts.rows:
                raise DataError(message(name, "no rows", "at least one"))
            found.append(facts)
    leaks, num_shots = _leaks(settings, heldout)
    if rates and not num_rated:
        accepted = "a run that trained on problems of these sources"
        place = f"assay data inspect, pass_rates_of {settings.pass_rates_of}"
        raise DataError(message(place, "no problem of the sources", accepted))
    listed = (leaks, num_shots, settings.max_listed)
    return Inspection(found, settings.heldout, limit, count is not None, *listed)


def _compare(
    problem: Problem,
    facts: SourceFacts,
    seen: set[int],
    questions: NearQuestions,
    heldout: Sequence[Problem],
) -> None:
    """Count a row that contains its answer, repeats an earlier row, or repeats a held-out row."""
    words = normalize(problem)
    facts.own_answer += holds_own_answer(problem)
    if states_own_answer(problem):
        facts.stated_answer.append(problem.place)
    facts.repeats += hash(words) in seen
    seen.add(hash(words))
    if questions.equal(words) is not None:
        facts.heldout_same += 1
    elif (nearest := questions.nearest(words)) is not None:
        index, share, is_similar = nearest
        near = NearDuplicate(problem.place, heldout[index].place, share, is_similar)
        facts.near.append(near)


def _leaks(settings: InspectSettings, heldout: Sequence[Problem]) -> tuple[list[Leak], int | None]:
    """Return the held-out rows in few-shot examples, and the number of examples."""
    if not settings.shots:
        return [], None
    if not heldout:
        accepted = "held-out rows (--heldout), with which the examples are compared"
        raise DataError(message("assay data inspect, shots", "no held-out rows", accepted))
    texts = HeldoutTexts(heldout, settings.near_duplicate_overlap)
    found, num_shots = list[Leak](), 0
    for name in settings.shots:
        opened = open_source(name)
        for position, number, raw in opened.scan():
            num_shots += 1
            where = f"{opened.label}:{number}"
            read = opened.fetch(position) if raw is UNREAD else raw
            found += texts.leaks(where, text_of_example(copy_row(opened.parse(read, where), where)))
    return found, num_shots


def _pass_rates(run: str) -> Mapping[str, Mapping[str, int]]:
    """Return the passed and judged completions of each problem id in a run's rollout log."""
    passed, judged = Counter[str](), Counter[str]()
    for row in load_run(run).rollouts(columns=("problem_id", "status")):
        judged[row["problem_id"]] += row["status"] != "not_judged"
        passed[row["problem_id"]] += row["status"] == "passed"
    return {name: {"passed": passed[name], "judged": count} for name, count in judged.items()}


def _problems_of(sources: Sequence[str]) -> Iterable[Problem]:
    return load_problems(sources) if sources else ()


def _usable(
    opened: Source,
    position: int,
    raw: Any,
    where: str,
    settings: InspectSettings,
    service: VerifierService,
    facts: SourceFacts,
) -> Problem | None:
    """Return the problem of a row, or None for a refused row, which is counted.

    Raises DataError for a row of no form.
    """
    row: Mapping[str, Any] = {}
    try:
        # Rows of reasoning-gym are generated on demand.
        raw = opened.fetch(position) if raw is UNREAD else raw
        row = copy_row(opened.parse(raw, where), where)
    except DataError as error:
        facts.forms["not readable"] += 1
        facts.refuse(where, str(error))
        return None
    form = recognize(row)
    if form is None:
        read_problem(row, where, where)
        accepted = f"a row with {', '.join(PROMPT_KEYS)}, or one of a published form"
        raise DataError(message(where, f"keys {', '.join(row)}", accepted, nearest_form(row)))
    facts.forms[form.name] += 1
    try:
        problem = read_problem(row, where, where)
        expression = problem.verifier or settings.verifier or _verifier_of(form)
        judged = dataclasses.replace(problem, verifier=expression)
        service.check_problem(judged)
        # A missing package or toolchain is a property of this machine and not of the row.
        if why := service.lacks(judged):
            raise DataError(f"{where}: cannot be judged on this machine: {why}")
    except (DataError, VerifierError) as error:
        # A key such as "prompt" is common to many forms and says nothing.
        advice = nearest_form(row, least=2) if form is ASSAY else ""
        facts.refuse(where, f"{error}; {advice}" if advice else str(error))
        return None
    facts.verifiers[expression] += 1
    return problem


def _verifier_of(form: Form) -> str:
    name = form.verifier.partition(",")[0]
    return name if name != ASSAY.verifier else DEFAULT_VERIFIER


def _token_counter(
    settings: InspectSettings,
) -> tuple[Callable[[Problem], int] | None, int | None]:
    """Return a function that counts a prompt's tokens, and the limit; None without a model."""
    if settings.model is None:
        if settings.max_tokens is not None:
            found = "no model"
            accepted = "a model, whose tokenizer counts the tokens"
            raise DataError(message("assay data inspect, max_tokens", found, accepted))
        return None, None
    from transformers import AutoConfig

    from assay.model.load import silence_transformers
    from assay.model.sources import ModelSource, read_tokenizer

    silence_transformers()
    source = ModelSource.find(settings.model, None)
    try:
        config: Any = AutoConfig.from_pretrained(source.place, **source.options())
    except Exception as error:  # a third-party library reads a user's files
        raise ModelError(f"model {settings.model}: cannot be read ({cause(error)})") from error
    tokenizer = read_tokenizer(source, SimpleNamespace(config=config))
    template = "chat" if tokenizer.chat_template else "base"
    renderer = PromptRenderer(tokenizer, DataConfig(template=template))
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    return lambda problem: len(renderer.render(problem).tokens), settings.max_tokens or context
