"""Log of an unfinished evaluation, with which a killed command continues without sampling again.

    out.jsonl         the completions with their verdicts, written as they are judged
    out.jsonl.part    the log: every finished completion; removed when the command ends

The first line of the log has the settings that completions depend on (`settings_of`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from assay.config import SamplingConfig, TrainConfig
from assay.errors import RunError, message
from assay.generate.base import Generator, GeneratorWrapper
from assay.generate.oversampling import OversamplingCutoff
from assay.host.records import as_object, check_regular
from assay.host.removal import remove_file
from assay.host.terminal import say
from assay.model.load import find_parts
from assay.types import Completion, Group, Problem, Prompt

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
REMEDY = "give another --out, finish that evaluation first, or remove the file"
_ARRAYS = {
    "tokens": np.int32,
    "behavior_logprobs": np.float32,
    "sampled": np.bool_,
    "model_logprobs": np.float32,
}
_PLAIN = ("text", "finish_reason", "policy_version", "num_think_tokens")


class EvaluationLog(AbstractContextManager["EvaluationLog"]):
    """Finished completions of one evaluation command, by problem set and completion id.

    facts: settings on which the completions depend. The log file is created with the first
    completion, and removed when the context ends without an exception. Raises RunError if the log
    file was written with other settings.
    """

    def __init__(self, out: Path, facts: Mapping[str, Any]) -> None:
        self.path = out.with_name(f"{out.name}.part")
        # JSON turns tuples into lists, so settings are converted before they are compared.
        self._facts: dict[str, Any] = json.loads(json.dumps(facts, default=str))
        # There may be millions of rows, so memory has only their byte offsets in the file.
        self._places: dict[tuple[str, str], int] = {}
        self._size = 0
        self._file: BinaryIO | None = None
        self._read()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        if kind is None:
            remove_file(self.path)
        elif self._places:
            saved = f"{len(self._places)} completions are kept in {self.path}"
            say(f"note: {saved}; the same command goes on from there")

    def find(self, part: str, name: str, prompt: Prompt) -> Completion | None:
        """Return a logged completion; None if it is not logged or had a different prompt."""
        if (place := self._places.get((part, name))) is None:
            return None
        file = self._opened()
        file.seek(place)
        row: dict[str, Any] = json.loads(file.readline())
        return _completion(row, prompt) if row["prompt"] == digest_of(prompt) else None

    def add(self, part: str, prompt: Prompt, completion: Completion) -> None:
        """Log a completion."""
        if not self._size:
            self._write(self._facts)
        self._places[part, completion.id] = self._size
        self._write({"part": part, "prompt": digest_of(prompt), **_row(completion)})

    def _write(self, row: Mapping[str, Any]) -> None:
        file, line = self._opened(), f"{json.dumps(row)}\n".encode()
        file.seek(self._size)
        file.write(line)
        # A killed process loses its buffers, so the file is flushed after each completion.
        file.flush()
        self._size += len(line)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            # `__exit__` closes the file, so it is opened without a `with` block.
            self._file = open(self.path, "r+b" if self._size else "w+b")  # noqa: SIM115
            # A kill may leave an incomplete last line, which is cut off before the next write.
            self._file.truncate(self._size)
        return self._file

    def _read(self) -> None:
        if not self.path.exists():
            return
        check_regular(self.path)
        with open(self.path, "rb") as file:
            for line in file:
                row = as_object(line) if line.endswith(b"\n") else None
                if row is None:
                    return
                if not self._size and row != self._facts:
                    found = f"completions sampled with {_difference(row, self._facts)}"
                    accepted = "those of this evaluation, which goes on from them"
                    raise RunError(message(str(self.path), found, accepted, REMEDY))
                if self._size:
                    self._places[str(row.get("part")), str(row.get("id"))] = self._size
                self._size += len(line)


class ResumableGenerator(GeneratorWrapper):
    """Wrapper of a generator, which logs each completion and samples only those that are missing.

    part: name of the problem set; completion ids are unique only within one problem set.
    """

    def __init__(self, generator: Any, log: EvaluationLog, part: str = "") -> None:
        super().__init__(generator)
        self.log, self.part, self._render = log, part, generator.render

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Return one group per problem.

        A completion that a server failed to return is not logged, so it is sampled again.
        """
        prompts = {problem.group_id: self._render(problem) for problem in problems}
        numbers = range(first_sibling, first_sibling + group_size)
        found: dict[str, Group] = {}
        missing: dict[tuple[int, ...], list[Problem]] = {}

        def ended(group: Group) -> None:
            found[group.id] = group
            if on_group is not None:
                on_group(group)

        for problem in problems:
            there = self._there(problem, prompts[problem.group_id], numbers)
            lacking = tuple(n for n in numbers if n not in there)
            if lacking:
                missing.setdefault(lacking, []).append(problem)
            else:
                siblings = tuple(there[n] for n in numbers)
                ended(Group(problem, prompts[problem.group_id], siblings))
        for lacking, those in missing.items():
            self._sample(those, lacking, sampling, numbers, prompts, ended)
        return [found[problem.group_id] for problem in problems]

    def _sample(
        self,
        problems: Sequence[Problem],
        lacking: Sequence[int],
        sampling: SamplingConfig,
        numbers: range,
        prompts: Mapping[str, Prompt],
        ended: Callable[[Group], None],
    ) -> None:
        """Sample the missing completions of each problem, and complete the groups."""

        def keep(group: Group) -> None:
            for one in group.completions:
                if one.failure is None:
                    self.log.add(self.part, group.prompt, one)
            if len(lacking) == len(numbers):
                ended(group)

        if len(lacking) == len(numbers):
            self.generator.generate(problems, sampling, len(numbers), numbers.start, keep)
            return
        fresh: dict[str, Completion] = {}
        # A kill may leave gaps anywhere in a group, so missing completions are sampled one by one.
        # A single generator call can only sample completions with consecutive indices.
        for number in lacking:
            for group in self.generator.generate(problems, sampling, 1, number, keep):
                fresh |= {one.id: one for one in group.completions}
        for problem in problems:
            prompt = prompts[problem.group_id]
            there = self._there(problem, prompt, numbers)
            siblings = (fresh.get(f"{problem.group_id}/{n}") or there[n] for n in numbers)
            ended(Group(problem, prompt, tuple(siblings)))

    def _there(self, problem: Problem, prompt: Prompt, numbers: range) -> dict[int, Completion]:
        """Return the logged completions of a problem, by index in the group."""
        names = {n: f"{problem.group_id}/{n}" for n in numbers}
        found = {n: self.log.find(self.part, name, prompt) for n, name in names.items()}
        return {n: one for n, one in found.items() if one is not None}


def resumable(generator: Generator, log: EvaluationLog | None, part: str = "") -> Generator:
    """Wrap a generator in a `ResumableGenerator`; without a log, return the generator unchanged."""
    return generator if log is None else ResumableGenerator(generator, log, part)


def settings_of(config: TrainConfig, sampling: SamplingConfig, num_samples: int) -> dict[str, Any]:
    """Return the settings on which completions depend, apart from their prompts.

    The number of actors does not change any completion, so it is not included.
    """
    server = config.server
    facts: dict[str, Any] = {
        "model": config.model.model_dump(mode="json", exclude_none=True),
        "server": None if server.url is None else {"url": server.url, "model": server.model},
        "generator": config.scale.generator,
        "sampling": sampling.model_dump(mode="json"),
        "mixture": {
            name: part.sampling_changes for name, part in sorted(config.data.mixture.items())
        },
        "tools": config.tools.model_dump(mode="json"),
        "seed": config.run.seed,
        "samples": num_samples,
    }
    return facts if server.url is not None else {**facts, "weights": _weights(config)}


def digest_of(prompt: Prompt) -> str:
    """Return a hash of the tokens and the think mode of a prompt."""
    text = f"{prompt.think.mode} ".encode() + prompt.tokens.tobytes()
    return hashlib.sha256(text).hexdigest()[:16]


def _weights(config: TrainConfig) -> list[list[Any]]:
    """Return the name, size and modification time of each weight file, to detect retrained
    weights."""
    source, adapter = find_parts(config.model)
    folders = [Path(source.place), *([adapter] if adapter else [])]
    files = [file for folder in folders for kind in WEIGHTS for file in sorted(folder.glob(kind))]
    return [[one.name, one.stat().st_size, one.stat().st_mtime_ns] for one in files]


def _row(completion: Completion) -> dict[str, Any]:
    arrays = {name: getattr(completion, name) for name in _ARRAYS}
    coded = {
        name: base64.b64encode(array.tobytes()).decode()
        for name, array in arrays.items()
        if array is not None
    }
    spans = {"turn_ends": completion.turn_ends, "said": completion.said}
    plain = {name: getattr(completion, name) for name in _PLAIN}
    return {"id": completion.id, **plain, **spans, **coded}


def _completion(row: Mapping[str, Any], prompt: Prompt) -> Completion:
    arrays = {
        name: np.frombuffer(base64.b64decode(row[name]), kind)
        for name, kind in _ARRAYS.items()
        if name in row
    }
    spans: dict[str, Any] = {
        "turn_ends": tuple(row["turn_ends"]),
        "said": tuple((start, end) for start, end in row["said"]),
    }
    plain = {name: row[name] for name in _PLAIN}
    known = cast("dict[str, Any]", arrays)
    return Completion(id=row["id"], think=prompt.think, **plain, **spans, **known)


def _difference(before: Any, now: Any, key: str = "") -> str:
    """Return the first difference between two JSON values, with its dotted key."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*now, *before]:
            if before.get(name) != now.get(name):
                return _difference(before.get(name), now.get(name), f"{key}.{name}".strip("."))
    if key == "weights":
        return "other weights in the same folder"
    return f"{key} = {json.dumps(before)}, and not {json.dumps(now)}"
