"""Evaluate a model on published benchmarks (``assay eval --suite``): rows, prompt, scoring rule.

    DIR/gsm8k.jsonl has every completion with its verdict.
    DIR/gsm8k.json has the accuracy, the settings and the hash of the rows.
    DIR/suites.md has the table of results.

A suite whose ``DIR/NAME.json`` has the same settings, rows and weights is not sampled again, so a
killed command continues.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

from assay import config as configuration
from assay.data.leaked_examples import HeldoutTexts
from assay.data.source import UNREAD
from assay.data.sources import open_source
from assay.errors import ConfigError, DataError, did_you_mean, message
from assay.host.files import check_folder, read_json, write_atomic, write_json
from assay.host.terminal import say, warn
from assay.run.intervals import share_words
from assay.session.evaluation_log import settings_of
from assay.session.sampling import (
    SamplingOptions,
    checkpoint_of,
    sampling_config,
    several,
    takes_sampling_options,
)
from assay.training.api import evaluate
from assay.types import Problem

# Keys of a question in the published forms of rows (`assay.data.benchmark_rows`).
_ASKED = ("question", "Question", "problem", "Problem", "prompt", "text")
_IDS = {"id", "ID", "task_id", "unique_id", "question_id", "Record ID"}
# Settings of a run that change samples or verdicts, except for settings that suites set.
# A run keeps its think mode, budget and effort, with which its model is meant to be used.
_OF_A_RUN = ("data.mixture", "sampling.top_k", "sampling.min_p", "verification.options")
# Files in the folder of a model that change the model's prompts.
# The settings already identify the weights, so weights need no key of their own.
_PROMPT_FILES = ("tokenizer*.json", "chat_template*", "special_tokens_map.json", "*.model")
# Keys in the section `[data]` that change the text of a prompt.
_SHOWN = ("template", "prompt_template", "system_prompt", "think", "verifier")
# GSM8K's solutions contain calculator marks such as <<48/2=24>>.
# In worked examples, these marks halved the accuracy of a 0.5B model, which imitated the marks.
_MARKS = re.compile(r"<<[^<>\n]*>>")


@dataclass(frozen=True)
class PublishedSuite:
    """A published benchmark with its prompt and sampling settings.

    source: rows on the hub. form: prompt format: ``chat`` (the tokenizer's chat template) or
    ``base`` (plain text). instruction: text after each question. system: system message. shots:
    data source of worked examples; the first ``num_shots`` examples precede each question.
    settings: further configuration changes. scoring: the scoring rule of the benchmark's authors,
    and differences from their prompt.
    """

    name: str
    source: str
    verifier: str
    scoring: str
    max_tokens: int
    form: str = "chat"
    instruction: str = ""
    system: str | None = None
    shots: str | None = None
    num_shots: int = 0
    stop: Sequence[str] = ()
    settings: Sequence[str] = ()
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def overrides(self) -> list[str]:
        """Return the configuration changes that replace the prompt settings of a model's run by
        those of the suite.
        """
        # An empty value removes a key, so that a run's prompt does not change the benchmark.
        pairs: dict[str, Any] = {
            **dict.fromkeys(_OF_A_RUN),
            "data.template": "base" if self.form == "base" else None,
            "data.prompt_template": "{question}" if self.form == "base" else None,
            "data.system_prompt": self.system,
            "sampling.stop": list(self.stop),
            "sampling.top_p": self.top_p,
        }
        texts = (
            f"{key}={'' if value is None else json.dumps(value)}" for key, value in pairs.items()
        )
        return [*texts, *self.settings]


@dataclass(frozen=True)
class SuiteResult:
    """Result of one suite. facts: settings, hash of the rows, and weights, on which the accuracy
    depends."""

    name: str
    accuracy: Mapping[str, Any]
    scoring: str
    facts: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class SuiteResults:
    """Results of all benchmark suites of a command, in the order of the command."""

    model: str
    suites: Sequence[SuiteResult] = field(default_factory=tuple[SuiteResult, ...])

    @property
    def num_judged(self) -> int:
        """Number of benchmark problems with at least one verdict."""
        return sum(int(one.accuracy["num_problems"]) for one in self.suites)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"model": self.model, "suites": [one.as_dict() for one in self.suites]}

    def __str__(self) -> str:
        lines = ["| suite | problems | pass@1 | tokens | cut at the limit | not judged |"]
        lines.append("|---|---:|---|---:|---:|---:|")
        for one in self.suites:
            found = one.accuracy
            rate = found["pass_at_1"]
            # `share_words` reads metric names, so each key gets the prefix of evaluations.
            row = {f"eval/{key}": value for key, value in found.items()}
            shown = "none judged" if rate is None else f"{rate:.1%}{share_words(row, '.1%')}"
            parts = [one.name, f"{found['num_problems']:,}", shown, f"{found['mean_tokens']:.0f}"]
            parts += [f"{found['truncated']:.0%}", f"{found['num_not_judged']:,}"]
            lines.append(f"| {' | '.join(parts)} |")
        lines += ["", *(f"{one.name}: {one.scoring}." for one in self.suites)]
        return "\n".join(lines)

    __repr__ = __str__


def read_suites() -> dict[str, PublishedSuite]:
    """Return all suites by name."""
    text = files("assay.evaluation").joinpath("suites.toml").read_text(encoding="utf-8")
    return {name: PublishedSuite(name, **table) for name, table in tomllib.loads(text).items()}


def find_suites(names: Sequence[str]) -> list[PublishedSuite]:
    """Return the benchmark suites with these names; one name may list several suites with commas.

    Raises ConfigError.
    """
    known = read_suites()
    asked = [one.strip() for name in names for one in name.split(",")]
    for name in asked:
        if name not in known:
            where, accepted = f"--suite {name}", ", ".join(known)
            raise ConfigError(message(where, "no such suite", accepted, did_you_mean(name, known)))
    if repeated := next((one for one in asked if asked.count(one) > 1), None):
        raise ConfigError(message("--suite", f"{repeated} twice", "each suite once"))
    return [known[name] for name in asked]


@takes_sampling_options
def evaluate_suites(
    model: Path | str,
    suites: Sequence[str],
    *,
    num_samples: int | None = None,
    temperature: float | None = None,
    max_problems: int | None = None,
    folder: Path | str | None = None,
    out: Path | str | None = None,
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> SuiteResults:
    """Measure a model on published benchmarks, each with its own prompt and token limits.

        found = assay.evaluate_suites("Qwen/Qwen3-0.6B", ["gsm8k", "ifeval"], out="suites")
        found.suites[0].accuracy["pass_at_1"]

    suites: names in `suites.toml`. num_samples, temperature, ``max_tokens``: None means the suite's
    own value. overrides: settings that are applied after those of the benchmark suite. folder:
    folder with ``NAME.jsonl`` files, which are read instead of the hub. out: folder for completions
    and results; suites with results for equal settings are not sampled again.

    All other parameters of this function are those of `assay.evaluate`. Raises UserError for
    invalid input.
    """
    chosen = find_suites(suites)
    for one in chosen:
        heat = one.temperature if temperature is None else temperature
        configuration.check_siblings(num_samples or one.samples, heat)
    if out is not None:
        check_folder(Path(out), "--out")
    # All rows are read before a model is loaded: a missing file must not end the third suite.
    place = None if folder is None else Path(folder)
    rows = {one.name: list(suite_rows(one, place, max_problems)) for one in chosen}
    found: list[SuiteResult] = []
    for one in chosen:
        asked = _Asked(one, str(model), rows[one.name], num_samples, temperature, options)
        found.append(asked.measure(None if out is None else Path(out), quiet))
    results = SuiteResults(str(model), found)
    if out is not None:
        write_atomic(Path(out) / "suites.md", f"{results}\n".encode())
    return results


class _Asked:
    """One benchmark suite of a command, with the options of the command."""

    def __init__(
        self,
        suite: PublishedSuite,
        model: str,
        rows: Sequence[Mapping[str, Any]],
        num_samples: int | None,
        temperature: float | None,
        options: SamplingOptions,
    ) -> None:
        self.suite, self.model, self.rows = suite, model, rows
        self.num_samples = num_samples or suite.samples
        self.temperature = suite.temperature if temperature is None else temperature
        self.options: SamplingOptions = {
            **options,
            "verifier": options.get("verifier") or suite.verifier,
            "max_tokens": options.get("max_tokens") or suite.max_tokens,
            "overrides": [*suite.overrides, *several(options.get("overrides", ()))],
        }

    def measure(self, folder: Path | None, quiet: bool) -> SuiteResult:
        """Return the saved result of the suite if its settings are equal, or else a new result."""
        facts = json.loads(json.dumps(self.facts(), default=str))
        name = self.suite.name
        if folder is None:
            return self._result(facts, self._evaluate(None, quiet))
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"{name}.json"
        kept = read_json(place) or {}
        # A result with missing verdicts is not reused: their cause may since be removed.
        is_judged = (kept.get("accuracy") or {}).get("num_not_judged") == 0
        is_whole = kept.keys() == vars(self._result(facts, {})).keys()
        if is_judged and is_whole and kept.get("facts") == facts:
            say(f"note: {name}: result of {place}; remove the file to sample again")
            return SuiteResult(**kept)
        result = self._result(facts, self._evaluate(folder / f"{name}.jsonl", quiet))
        write_json(place, result.as_dict())
        return result

    def facts(self) -> dict[str, Any]:
        """Return all settings and hashes on which the accuracy depends."""
        config = sampling_config(self.model, [self.suite.source], self.options)
        sampling = configuration.at_temperature(config.sampling, self.temperature)
        shown = config.data.model_dump(mode="json", include={*_SHOWN})
        rows = "\n".join(json.dumps(row, sort_keys=True, default=str) for row in self.rows)
        return {
            **settings_of(config, sampling, self.num_samples),
            "data": shown,
            "verification": config.verification.model_dump(mode="json"),
            "prompt_files": _prompt_files(self.model),
            "num_rows": len(self.rows),
            "rows": hashlib.sha256(rows.encode(errors="surrogatepass")).hexdigest(),
        }

    def _evaluate(self, out: Path | None, quiet: bool) -> Mapping[str, Any]:
        if not quiet:
            say(f"{self.suite.name}: {len(self.rows):,} problems")
        how = {"num_samples": self.num_samples, "temperature": self.temperature}
        return evaluate(
            self.model, self.rows, out=out, quiet=quiet, **how, **self.options
        ).as_dict()

    def _result(self, facts: Mapping[str, Any], accuracy: Mapping[str, Any]) -> SuiteResult:
        return SuiteResult(self.suite.name, accuracy, self.suite.scoring, facts)


def suite_rows(
    suite: PublishedSuite, folder: Path | None = None, max_problems: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a benchmark suite, with its worked examples and its instruction in the
    prompt.

    folder: folder with ``NAME.jsonl`` and ``NAME_shots.jsonl`` files, which are read instead of the
    hub. Raises DataError for a row that has no question.
    """
    lead = ""
    rows = islice(_raw_rows(_place(suite.name, suite.source, folder)), max_problems)
    if suite.shots is not None:
        source = _place(f"{suite.name}_shots", suite.shots, folder)
        shots = list(islice(_raw_rows(source), suite.num_shots))
        lead = "".join(map(_worked, shots))
        rows = list(rows)
        _check_shots(suite, source, shots, rows)
    for number, row in enumerate(rows, 1):
        key = _question_key(suite, number, row)
        if lead:
            row[key] = f"{lead}Question: {row[key].strip()}\nAnswer:"
        if suite.instruction:
            row[key] = f"{row[key].rstrip()}\n\n{suite.instruction}"
        if not _IDS & row.keys():
            row["id"] = f"{suite.name}-{number}"
        yield row


def _question_key(suite: PublishedSuite, number: int, row: Mapping[str, Any]) -> str:
    key = next((key for key in _ASKED if isinstance(row.get(key), str)), None)
    if key is None:
        found = f"the keys {', '.join(row)}" if row else "no keys"
        raise DataError(message(f"{suite.name} row {number}", found, " or ".join(_ASKED)))
    return key


def _check_shots(
    suite: PublishedSuite,
    source: str,
    shots: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Warn of a worked example that contains the question or the answer of a suite's row."""
    asked: list[Problem] = []
    for number, row in enumerate(rows, 1):
        question = row[_question_key(suite, number, row)]
        place = f"{suite.name} row {number}"
        asked.append(Problem(place, question, {"answer": row.get("answer", "")}))
    texts = HeldoutTexts(asked)
    for number, shot in enumerate(shots, 1):
        # A worked example shows the answer of its question to the model.
        for leak in texts.leaks(f"{source} row {number}", _worked(shot)):
            warn(f"{leak}; if they are one problem, give another worked example")


def _prompt_files(model: str) -> dict[str, str]:
    """Return a hash of each file of a model that changes the model's prompts, by file name."""
    folder = Path(checkpoint_of(model) or model)
    if not folder.is_dir():
        # For a hub model, the settings already contain the model's revision.
        return {}
    found = sorted({path for pattern in _PROMPT_FILES for path in folder.glob(pattern)})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _worked(row: Mapping[str, Any]) -> str:
    answer = _MARKS.sub("", str(row.get("answer")))
    return f"Question: {row.get('question')}\nAnswer: {answer}\n\n"


def _place(name: str, source: str, folder: Path | None) -> str:
    if folder is None:
        return source
    place = folder / f"{name}.jsonl"
    if not place.is_file():
        where, accepted = f"--suite-folder {folder}", f"{place.name} with the rows of {source}"
        raise DataError(message(where, f"no {place.name}", accepted))
    return str(place)


def _raw_rows(source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data source in their published form."""
    opened = open_source(source)
    for position, number, raw in opened.scan():
        found = opened.fetch(position) if raw is UNREAD else raw
        yield dict(opened.parse(found, f"{opened.label}:{number}"))
