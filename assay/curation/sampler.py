"""Sampling for data transforms: problems in, judged groups out, by the engine or a model server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter

from assay import config as configuration
from assay.config import SamplingConfig, TrainConfig
from assay.config.toml_text import merged
from assay.curation.asking import AskingSettings
from assay.curation.output import Output
from assay.curation.server import ChatServer
from assay.data.chat import chat_of, with_effort
from assay.data.completions import Record
from assay.data.problems import check_spec
from assay.errors import ConfigError, DataError, message
from assay.generate.base import Generator
from assay.host.startup import doing
from assay.run.startup import show_startup
from assay.session.assemble import open_verifiers, show_sampling, with_slots
from assay.session.evaluate import sample_and_judge
from assay.session.sampling import SamplingOptions, sampling_config
from assay.session.sampling_session import (
    Sampler,
    SamplingSession,
    check_sampling,
    open_sampling,
)
from assay.session.server_generator import ServerGenerator
from assay.types import Group, Message, Problem, ThinkFormat, ThinkMode, Verdict
from assay.verify.service import VerifierService

# Number of completions in a sampling round, as a multiple of the engine's slots.
AT_ONCE = 4

Style = Callable[[Problem, str | None], Problem]
"""Function that changes a problem's prompt before sampling. The second argument is the template
around a question for plain-text prompts, and None for chats."""


@dataclass(frozen=True)
class Sampled:
    """Completions of a problem, with their verdicts (None for completions without a verdict)."""

    group: Group
    verdicts: Sequence[Verdict | None]

    @property
    def counts(self) -> tuple[int, int]:
        """The number of passed completions and the number of judged completions."""
        judged = [one for one in self.verdicts if one is not None and one.judged]
        return sum(one.correct for one in judged), len(judged)

    def tally(self) -> dict[str, int]:
        """Return the group's numbers of sampled, judged and passed completions and of tokens, to be
        summed over all groups."""
        passed, judged = self.counts
        return {
            "problems": 1,
            "solved": int(passed > 0),
            "completions": len(self.verdicts),
            "passed": passed,
            "judged": judged,
            "truncated": sum(one.truncated for one in self.group.completions),
            "tokens": sum(len(one.tokens) for one in self.group.completions),
        }


def sampled(
    settings: AskingSettings,
    out: Output,
    problem_of: Callable[[Record], Problem] = attrgetter("problem"),
    style: Style = lambda problem, template: problem,
    judged: bool = True,
    modes: Sequence[ThinkMode | None] = (None,),
) -> Iterator[tuple[Record, list[Sampled]]]:
    """Yield each input row with sampled completions of its problem, one group per think mode.

    modes: think modes in which completions are sampled; None stands for the problem's own think
    mode.

    All rows are validated before a model is loaded. The filter ``prompt`` removes problems whose
    prompts are too long. The filter ``no_reply`` removes problems without a reply from the server.
    """
    config = sampling_of(settings)
    check_sampling(config)
    with show_startup():
        verifiers = open_verifiers(config, out, actors=True)

    def check(row: Record) -> None:
        problem = problem_of(row)
        check_sampling(config, [problem])
        if judged:
            check_spec(problem, verifiers.check_problem)

    # Ids must be unique, because completions are assigned to rows by problem id.
    key, limit = lambda row: problem_of(row).id, settings.max_problems
    with show_startup(), doing("checking the rows"):
        rows = out.open(settings.inputs, check, key=key, limit=limit)
    if settings.url is None:
        config = with_slots(config, len(rows) * settings.num_samples)
        total = len(rows) * settings.num_samples * len(modes)
        with show_startup():
            session = open_sampling(config, verifiers, out)
        slots, server = config.engine.slots, config.server
        at_once = slots if server.url is None else server.concurrency
        generator = _generator_of(session, style, total, out)
    else:
        generator, at_once = _open_server(settings, config, style), settings.concurrency
    sampling = configuration.at_temperature(config.sampling, settings.temperature)
    # A round samples several times as many completions as the engine has slots.
    # The engine's slots are idle only while the last long completions of a round finish.
    size = max(1, AT_ONCE * at_once // settings.num_samples)
    tallies = [Counter[str]() for _ in modes]
    for first in range(0, len(rows), size):
        asked = dict[str, tuple[Record, list[Problem]]]()
        for row in rows[first : first + size]:
            # A problem's `draw` is part of the sampling key and of completion ids.
            # Setting `draw` to the seed yields other completions and other ids for each seed.
            problem = replace(problem_of(row), draw=settings.seed)
            shown = [replace(problem, think=mode or problem.think) for mode in modes]
            try:
                for one in shown:
                    generator.render(one)
                asked[problem.id] = row, shown
            except DataError as error:
                out.take("prompt", row.keys, str(error))
        found: dict[str, list[Sampled]] = {id: [] for id in asked}
        for number, tally in enumerate(tallies):
            # A problem without a reply in an earlier think mode is not sampled again.
            problems = [each[number] for id, (_, each) in asked.items() if len(found[id]) == number]
            judge = verifiers if judged else None
            for one in _ask(generator, judge, problems, sampling, settings.num_samples):
                found[one.group.problem.id].append(one)
                tally.update(one.tally())
        for id, (row, _) in asked.items():
            if len(found[id]) == len(modes):
                yield row, found[id]
            else:
                out.take("no_reply", row.keys, _last_trouble(generator))
        # After a kill, the rows of all finished rounds are in the .part file.
        out.flush()
    rates = [dict(tally) | _rate(tally) for tally in tallies]
    out.manifest.measured = rates[0] | ({"without_thinking": rates[1]} if rates[1:] else {})


def _ask(
    generator: Generator,
    verifiers: VerifierService | None,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    num_samples: int,
) -> Iterator[Sampled]:
    """Yield the groups with at least one completion, without completions that a server failed to
    return."""
    if verifiers is None:
        groups = generator.generate(problems, sampling, num_samples)
        verdicts: Sequence[Sequence[Verdict | None]] = [[None] * num_samples] * len(groups)
    else:
        groups, verdicts = sample_and_judge(generator, verifiers, problems, sampling, num_samples)
    for group, judged in zip(groups, verdicts, strict=True):
        pairs = zip(group.completions, judged, strict=True)
        given = [pair for pair in pairs if pair[0].failure is None]
        if given:
            completions = tuple(one for one, _ in given)
            yield Sampled(
                replace(group, completions=completions), [verdict for _, verdict in given]
            )


def _generator_of(session: SamplingSession, style: Style, total: int, stack: ExitStack) -> Sampler:
    """Return a session's generator, which renders prompts in a style and shows its progress.

    total: number of completions for the progress display, which ends when ``stack`` closes.
    """
    data = session.config.data
    render, is_plain = session.renderer.render, session.renderer.template == "base"
    template = data.prompt_template if is_plain else None
    session.generator.render = lambda problem: render(style(problem, template))
    watch = show_sampling(session.generator, stack, quiet=False)
    stack.enter_context(watch.doing("problems", total))
    return session.generator


def _open_server(settings: AskingSettings, config: TrainConfig, style: Style) -> ChatServer:
    data = config.data

    def render(problem: Problem) -> list[Message]:
        prompt = style(problem, None).prompt
        prompt = with_effort(prompt, config.sampling, problem.effort, problem.place)
        return chat_of(prompt, data.system_prompt)

    return ChatServer(
        str(settings.url),
        settings.model,
        render,
        api_key_env=settings.api_key_env,
        concurrency=settings.concurrency,
        think=ThinkFormat("free", data.think_open, data.think_close),
        thinks=data.think != "empty",
    )


def _rate(tally: Counter[str]) -> dict[str, float]:
    return {"pass_rate": round(tally["passed"] / tally["judged"], 6)} if tally["judged"] else {}


def sampling_of(settings: AskingSettings) -> TrainConfig:
    """Return the sampling configuration of a transform: the model's run configuration, else the
    defaults, with the transform's settings applied."""
    options = SamplingOptions(
        max_tokens=settings.max_tokens,
        verifier=settings.verifier,
        trust_run=settings.trust_run,
        seed=settings.seed,
        device=settings.device,
        server=settings.server,
        actors=settings.actors,
    )
    model = settings.model if settings.url is None else "(a server)"
    config = sampling_config(model, settings.inputs, options)
    config = configuration.build(merged(config.model_dump(exclude_none=True), settings.config))
    asked = [*config.tools.names, *filter(None, [config.tools.environment])]
    if asked and settings.url is not None:
        accepted = "none with url: a server's model has no tools"
        raise ConfigError(message("config.tools", ", ".join(asked), accepted, "name a model"))
    return config


def _last_trouble(generator: Generator) -> str:
    lost = generator.no_replies if isinstance(generator, ServerGenerator) else []
    return lost[-1] if lost else "no completion"
