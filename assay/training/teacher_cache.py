"""Cached teacher logits on disk: the top-k tokens and the remaining mass at each position."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from assay.config import TeacherConfig
from assay.data.traces import Trace
from assay.errors import ConfigError, DataError, message
from assay.host.files import disk_full_as, write_atomic
from assay.host.records import as_object, check_regular
from assay.learn.passes import Passes
from assay.learn.teacher import CachedTeacher, OpenTeacher, TopK
from assay.model.packing import pack
from assay.model.probe import prove_lean
from assay.run.directory import Run
from assay.session.assemble import Session
from assay.session.teachers import divergence_of, head_size, open_teacher
from assay.training.row_schedule import GOOD, check_length, keys_of, parts
from assay.types import Group

# Number of traces per file.
PART = 256
ABOUT = b"assay"
FORMAT = 1
# Bytes of one cached token: a 4-byte id and a 4-byte log-probability.
TOKEN_BYTES, GIB = 8, 2**30
SCHEMA = pa.schema(
    [
        ("key", pa.binary(16)),
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("rest", pa.list_(pa.float32())),
    ]
)

Ask = Callable[[Sequence[Group]], list[TopK]]
"""Function that queries the teacher and returns one result per group."""


class LogitCache:
    """Cache of teacher logits: a folder of Parquet files with `PART` traces each.

    The key of a trace is a hash of its tokens, including the prompt, so a changed chat template
    causes new scoring. Each query to the teacher covers the traces of one file, and files are
    written atomically, so that a resumed run gets bit-identical values.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder = folder
        self.about = {"format": FORMAT, **about}
        self._places: dict[bytes, tuple[Path, int]] = {}
        # Each instance caches its own open files,
        # because a folder may be deleted and created again.
        self._opened = lru_cache(maxsize=64)(_open)
        for path in sorted(folder.glob("*.parquet")):
            self._take(path)

    def lacks(self, groups: Sequence[Group]) -> list[int]:
        """Return the indices of groups that are not cached; of equal groups, only the first index
        is returned."""
        # The order is reversed, so that the first of several equal groups stays in the dictionary.
        first = {key: n for n, key in reversed([*enumerate(map(_key, groups))])}
        return sorted(n for key, n in first.items() if key not in self._places)

    def fill(self, groups: Sequence[Group], ask: Ask) -> int:
        """Query the teacher for all missing groups and store them; return their number."""
        lacking = self.lacks(groups)
        for part in parts(lacking, PART):
            asked = [groups[n] for n in part]
            self._write(asked, ask(asked))
        return len(lacking)

    def of(self, groups: Sequence[Group], device: torch.device) -> TopK:
        """Return the cached logits of the given groups, concatenated."""
        rows = [self._row(*self._places[_key(group)]) for group in groups]
        tokens, logprobs, rest = (np.concatenate(column) for column in zip(*rows, strict=True))
        found = (tokens.astype(np.int64), logprobs, rest)
        one, two, three = (torch.from_numpy(each).to(device) for each in found)
        return one, two, three

    def _row(self, path: Path, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Each trace has its own Parquet row group, so that a step reads only its own traces.
        table = self._opened(str(path)).read_row_group(number, use_threads=False)
        tokens, logprobs, rest = (
            table.column(name).chunk(0).flatten().to_numpy() for name in SCHEMA.names[1:]
        )
        return tokens.reshape(len(rest), -1), logprobs.reshape(len(rest), -1), rest

    def _take(self, path: Path) -> None:
        """Add the traces of a file to the index; raises DataError for an invalid file and
        ConfigError for one of another teacher."""
        try:
            check_regular(path)
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                about = as_object((file.schema_arrow.metadata or {})[ABOUT])
                if about is None:
                    raise ValueError("metadata that are not a JSON object")
                keys = file.read(columns=["key"], use_threads=False).column("key").to_pylist()
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            found = "a damaged file, or one without cached teacher logits"
            remedy = "remove it, and its traces are scored again"
            raise DataError(message(str(path), found, "what [distill] wrote", remedy)) from error
        for name, value in self.about.items():
            # Without the section [teacher], the teacher's name is None,
            # and cached logits of every teacher are accepted.
            if value is not None and about.get(name) != value:
                found = f"{name} {about.get(name)}, and not {value}"
                remedy = "set distill.keep to another folder, or remove it"
                accepted = "cached logits of the same teacher, tokenizer, temperature and number"
                raise ConfigError(message(f"distill.keep {path}", found, accepted, remedy))
        self._places |= {key: (path, number) for number, key in enumerate(keys)}

    def check_room(self, groups: Sequence[Group], max_gib: float) -> None:
        """Raise ConfigError if these groups would need more disk space than ``max_gib``."""
        tokens = sum(len(group.completions[0].tokens) for group in groups)
        count = self.about["top_k"]
        needed = tokens * (count * TOKEN_BYTES + 4) / GIB
        if needed > max_gib:
            found = f"{max_gib:g} GiB for {tokens} tokens and their top {count} logits"
            accepted = f"at least {needed:.3g}"
            remedy = "raise it, or lower distill.keep_top"
            raise ConfigError(message("distill.keep_gib", found, accepted, remedy))

    def _write(self, groups: Sequence[Group], found: Sequence[TopK]) -> None:
        """Write a file with one row group per trace, so that traces are read individually."""
        taken = [path.stem.partition("-")[2] for path in self.folder.glob("part-*.parquet")]
        path = self.folder / f"part-{max(map(int, taken), default=-1) + 1:06d}.parquet"
        schema = SCHEMA.with_metadata({ABOUT: json.dumps(self.about).encode()})
        buffer = pa.BufferOutputStream()
        # Parquet's dictionary encoding would save no space: log-probabilities hardly repeat.
        how: dict[str, Any] = {"compression": "zstd", "use_dictionary": False}
        with pq.ParquetWriter(
            buffer, schema, **how, write_statistics=False, write_page_checksum=True
        ) as writer:
            for group, (tokens, logprobs, rest) in zip(groups, found, strict=True):
                columns = [tokens.flatten().int(), logprobs.flatten().float(), rest.float()]
                lists = [[column.cpu().numpy()] for column in columns]
                row = pa.Table.from_arrays(
                    [pa.array([_key(group)], SCHEMA.field(0).type)]
                    + [pa.array(one, SCHEMA.field(n).type) for n, one in enumerate(lists, 1)],
                    schema=schema,
                )
                writer.write_table(row)
        usable = "earlier files are usable: free some space and resume"
        with disk_full_as(lambda: f"{path}: the disk is full; {usable}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, memoryview(buffer.getvalue()))
        self._places |= {_key(group): (path, n) for n, group in enumerate(groups)}


def _open(path: str) -> pq.ParquetFile:
    return pq.ParquetFile(path, page_checksum_verification=True)


class TeacherCache:
    """The cached logits of a run's traces; the teacher stays open until all missing traces are
    scored.

    Raises UserError if the cache is unusable or cannot be filled.
    """

    def __init__(self, session: Session, groups: Sequence[Group], traces: Sequence[Trace]) -> None:
        config, settings = session.config, session.config.distill
        assert settings is not None and settings.keep is not None
        self.settings, self.groups = settings, groups
        self.divergence, self.device = divergence_of(config), session.loaded.device
        about = {
            "teacher": config.teacher and _name_of(config.teacher),
            "tokenizer": tokens_hash(session.loaded.tokenizer),
            "temperature": settings.temperature,
            "top_k": settings.keep_top,
        }
        self.cache = LogitCache(Path(settings.keep).expanduser(), about)
        lacking = self.cache.lacks(groups)
        self.cache.check_room([groups[n] for n in lacking], settings.keep_gib)
        self.teacher: OpenTeacher | None = None
        lengths = [len(groups[n].completions[0].tokens) for n in lacking]
        # Number of tokens of each file that the teacher must score.
        self.asked = [sum(part) for part in parts(lengths, PART)]
        if not lacking:
            return
        if config.teacher is None:
            where = f"distill.keep {settings.keep}"
            found = f"no logits of {traces[lacking[0]].source} as rendered by this template"
            accepted = "a folder with logits of every trace, or add [teacher]"
            raise ConfigError(message(where, found, accepted))
        self.teacher = open_teacher(session)
        self.size = min(head_size(session.loaded), self.teacher.size)
        if settings.keep_top > self.size:
            accepted = f"at most the {self.size} tokens of both models"
            raise ConfigError(message("distill.keep_top", settings.keep_top, accepted))
        longest = self.teacher.context_length
        for n in lacking:
            group = groups[n]
            length = len(group.prompt.tokens) + len(group.completions[0].tokens)
            accepted = f"the teacher's context of {longest}"
            check_length(traces[n].source, length, longest, accepted, "shorten it")

    def open(self, passes: Passes, run: Run) -> Callable[[Sequence[int]], CachedTeacher]:
        """Score missing traces, release the teacher, and return a lookup by trace indices."""
        if (teacher := self.teacher) is not None:
            own = copy.copy(passes)
            if teacher.model is not None:
                own.lean, _ = prove_lean(teacher.model)

            def ask(groups: Sequence[Group]) -> list[TopK]:
                # Earlier files are already on disk, so an interrupt loses only the scores of this
                # file's traces.
                run.clock.check()
                batch = pack(groups, [[GOOD]] * len(groups), self.device)
                found = teacher.top_k(batch, own, self.settings.keep_top, self.size)
                work.done += len(groups)
                return found

            lacking = len(self.cache.lacks(self.groups))
            with run.clock.working("asking the teacher", lacking, "traces") as work:
                asked = self.cache.fill(self.groups, ask)
            run.note(f"{asked} traces were scored by the teacher: {self.cache.folder}")
            # The teacher's memory is freed before training begins.
            self.teacher = None
        run.event("kept", traces=len(self.groups))
        return self.of

    def of(self, rows: Sequence[int]) -> CachedTeacher:
        """Return the cached logits of the traces with these indices."""
        found = self.cache.of([self.groups[n] for n in rows], self.device)
        return CachedTeacher(found, self.divergence)


def _name_of(teacher: TeacherConfig) -> str:
    return teacher.path + (f"@{teacher.revision}" if teacher.revision is not None else "")


def tokens_hash(tokenizer: Any) -> str:
    """Return a hash, in twelve hexadecimal digits, of a tokenizer's tokens and their ids."""
    # The tokens are sorted by id, because the order in a vocabulary's dictionary is arbitrary.
    known = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]


def _key(group: Group) -> bytes:
    (key,) = keys_of(group)
    return key
