"""What a data stage samples with: problems in, judged groups out, from the engine or a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from assay import config as configuration
from assay.config import TrainConfig
from assay.curation.asking import Asked, AskingSettings, read_asked
from assay.curation.base import Output
from assay.curation.server import ServerGenerator
from assay.data.problems import check_spec
from assay.data.rowset import RowSet
from assay.errors import DataError
from assay.generate.base import Generator
from assay.training.assemble import (
    Bench,
    open_bench,
    open_verifiers,
    show_sampling,
    with_slots,
)
from assay.training.evaluate import sample_and_judge
from assay.training.how_to_sample import sampling_config
from assay.types import Group, Message, Problem, ThinkFormat, Verdict

AT_ONCE = (
    4  # times the slots of the engine: so many completions are sampled before rows are written
)

Style = Callable[[Problem, str | None], Problem]
"""Makes the problem that is shown; the second argument is `in_style`'s template."""


class Sampler:
    """Samples and judges as a stage's settings say; verifiers are open until ``stack`` closes.

    Problems are read before the model is loaded: what is wrong with a row is told at once.
    """

    def __init__(self, settings: AskingSettings, stack: ExitStack) -> None:
        self.settings = settings
        self.config = _config(settings)
        self.sampling = configuration.at_temperature(self.config.sampling, settings.temperature)
        self.verifiers = open_verifiers(self.config, stack)
        self.judged = True
        self._stack = stack
        self._num_problems = 0
        self._bench: Bench | None = None
        self._server: ServerGenerator | None = None

    def read(
        self,
        out: Output,
        judged: bool = True,
        read: Callable[[Any, str, str], Asked] = read_asked,
    ) -> RowSet[Asked]:
        """Open the problems. judged: whether what a verifier needs must be there."""
        self.judged, check = judged, self.verifiers.check_problem
        rows = out.open(
            self.settings.inputs,
            read,
            key=lambda asked: asked.problem.id,
            check=(lambda asked: check_spec(asked.problem, check)) if judged else None,
            limit=self.settings.max_problems,
        )
        self._num_problems = len(rows)
        return rows

    def _with_slots(self) -> TrainConfig:
        """Return the configuration with the engine's slots."""
        return with_slots(self.config, self._num_problems * self.settings.num_samples)

    def parts(self, rows: RowSet[Asked]) -> Iterator[RowSet[Asked]]:
        """Yield the problems part by part: rows of a part are written before the next is asked."""
        if self.settings.url is None:
            slots = self._with_slots().engine.slots
        else:
            slots = self.settings.concurrency
        size = max(1, AT_ONCE * slots // self.settings.num_samples)
        for first in range(0, len(rows), size):
            yield rows[first : first + size]

    def sample(
        self,
        part: Iterable[Asked],
        out: Output,
        style: Style = lambda problem, template: problem,
        thinking: bool = True,
    ) -> list[tuple[Asked, Group, Sequence[Verdict | None]]]:
        """Return problems with their completions and verdicts; None where nothing judges.

        thinking: False asks for answers without reasoning. The filter ``prompt`` takes problems
        whose prompts do not fit, ``no_reply`` those that a server did not answer.
        """
        generator, render = self._generator(style)
        asked, shown = dict[str, Asked](), dict[str, Problem]()
        for one in part:
            problem = one.problem if thinking else replace(one.problem, think="empty")
            try:
                render(problem)
                asked[problem.id], shown[problem.id] = one, problem
            except DataError as error:
                out.take("prompt", one.row, str(error))
        problems = [replace(one, draw=self.settings.seed) for one in shown.values()]
        how = (self.sampling, self.settings.num_samples)
        if self.judged:
            groups, verdicts = sample_and_judge(generator, self.verifiers, problems, *how)
        else:
            groups = generator.generate(problems, *how)
            verdicts = [[None] * len(group.completions) for group in groups]
        found: list[tuple[Asked, Group, Sequence[Verdict | None]]] = [
            (asked.pop(group.problem.id), group, each)
            for group, each in zip(groups, verdicts, strict=True)
        ]
        for one in asked.values():
            out.take("no_reply", one.row, _last_trouble(generator))
        return found

    def _generator(self, style: Style) -> tuple[Generator, Callable[[Problem], object]]:
        """Return what samples, and what makes its prompts."""
        if self.settings.url is not None:
            server = self._server = self._server or self._open_server(self.settings.url, style)
            return server, server.messages
        bench = self._bench = self._bench or self._open_bench()
        is_plain = bench.renderer.template == "base"
        template = bench.config.data.prompt_template if is_plain else None
        bench.generator.render = lambda problem: bench.renderer.render(style(problem, template))
        return bench.generator, bench.generator.render

    def _open_bench(self) -> Bench:
        bench = open_bench(self._with_slots(), self.verifiers)
        watch = show_sampling(bench, self._stack, quiet=False)
        self._stack.enter_context(
            watch.doing("problems", self._num_problems * self.settings.num_samples)
        )
        return bench

    def _open_server(self, url: str, style: Style) -> ServerGenerator:
        data, settings = self.config.data, self.settings

        def messages(problem: Problem) -> list[Message]:
            prompt = style(problem, None).prompt
            turns: list[Message] = (
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
            )
            if data.system_prompt is not None and turns[0]["role"] not in ("system", "developer"):
                turns.insert(0, {"role": "system", "content": data.system_prompt})
            return turns

        return ServerGenerator(
            url,
            settings.model,
            messages,
            api_key_env=settings.api_key_env,
            concurrency=settings.concurrency,
            think=ThinkFormat("free", data.think_open, data.think_close),
            thinks=data.think != "empty",
        )


@dataclass
class Tally:
    """What a stage measured over all groups."""

    problems: int = 0
    solved: int = 0
    completions: int = 0
    passed: int = 0
    judged: int = 0
    truncated: int = 0
    tokens: int = 0

    def add(self, group: Group, verdicts: Sequence[Verdict | None]) -> tuple[int, int]:
        """Count a group; return how many of it passed, and how many were judged."""
        judged = [verdict for verdict in verdicts if verdict is not None and verdict.judged]
        passed = sum(verdict.correct for verdict in judged)
        self.problems += 1
        self.solved += passed > 0
        self.completions += len(verdicts)
        self.passed += passed
        self.judged += len(judged)
        self.truncated += sum(completion.truncated for completion in group.completions)
        self.tokens += sum(len(completion.tokens) for completion in group.completions)
        return passed, len(judged)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, and the pass rate where anything was judged."""
        rate = {"pass_rate": round(self.passed / self.judged, 6)} if self.judged else {}
        return {**asdict(self), **rate}


def _config(settings: AskingSettings) -> TrainConfig:
    config = sampling_config(
        settings.model if settings.url is None else "(a server)",
        settings.inputs,
        max_tokens=settings.max_tokens,
        verifier=settings.verifier,
        trust_run=settings.trust_run,
        seed=settings.seed,
        device=settings.device,
    )
    return configuration.build(_merged(config.model_dump(exclude_none=True), settings.config))


def _merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(tree)
    for key, value in changes.items():
        inner: Any = merged.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(inner, value) if both else value
    return merged


def _last_trouble(generator: Generator) -> str:
    return generator.no_replies[-1] if isinstance(generator, ServerGenerator) else "no completion"
