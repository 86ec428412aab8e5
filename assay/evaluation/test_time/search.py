"""``assay search``: answer problems by search, and measure the accuracy per generated token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from assay import config as configuration
from assay.config import SamplingConfig, TrainConfig
from assay.data.problems import load_problems
from assay.data.sources import Rows, as_sources
from assay.errors import ConfigError, VerifierError, did_you_mean, message
from assay.evaluation.test_time.drawing import Drawer
from assay.evaluation.test_time.measure import Searching
from assay.evaluation.test_time.methods import METHODS, SAMPLED, Shape
from assay.evaluation.test_time.result import SearchResult
from assay.evaluation.test_time.scorer import SCORERS, Scorer, open_scorer
from assay.evaluation.test_time.tree import StepLimits
from assay.host.files import check_output
from assay.host.startup import doing
from assay.run.startup import show_startup
from assay.session.assemble import (
    fit_heldout,
    open_verifiers,
    show_sampling,
    with_slots,
)
from assay.session.prefixes import PrefixRenderer
from assay.session.sampling import (
    SamplingOptions,
    asks_thinking,
    sampling_config,
    several,
    takes_sampling_options,
)
from assay.session.sampling_session import SamplingSession, check_sampling, open_sampling
from assay.session.thinking import check_thinking
from assay.training.reward_rows import SEPARATORS
from assay.types import Problem, Tokens

UNSCORED = ("self_consistency",)
"""Methods that need no scorer."""


@takes_sampling_options
def search(
    model: Path | str,
    problems: Rows,
    methods: Sequence[str] | str = "best_of_n",
    *,
    budgets: Sequence[int] | int,
    scorer: str | None = None,
    step: str | None = None,
    expand: int = 4,
    ahead: int = 1,
    exploration: float = 1.0,
    reduce: str | None = None,
    temperature: float = 1.0,
    max_problems: int | None = None,
    out: Path | str | None = None,
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> SearchResult:
    """Answer problems by search at test time; compare the methods at equal numbers of generated
    tokens.

        found = assay.search(
            "runs/first@best", "heldout.jsonl", "beam", budgets=[512, 2048], scorer="runs/process"
        )
        print(found)
        found.row("beam", 2048).accuracy, found.row("beam", 2048).stderr

    methods: ``best_of_n``, ``self_consistency``, ``weighted_vote``, ``beam``, ``dvts``,
    ``lookahead``, ``mcts`` (docs/search.md). budgets: numbers of tokens per problem; a search
    starts a completion only if the budget covers its maximum length. scorer: a run of
    ``[reward_model]``, a reward model's folder, or a verifier; ``self_consistency`` needs none.
    step: text that ends a reasoning step, or ``newline`` or ``blank_line``; None means the process
    reward model's separator, or else a newline.
    expand: children per tree node. ahead: lookahead steps of ``lookahead``. exploration:
    exploration constant of ``mcts`` in the PUCT formula. reduce: ``min``, ``product``, ``last`` or
    ``mean`` of the step scores of a process reward model; None means the model's setting. out:
    JSONL file to which all completions and their steps are written.

    All other parameters of `search` are those of `evaluate`. Raises UserError for invalid input.
    """
    sizes = sorted({budgets} if isinstance(budgets, int) else {*budgets})
    asked = _Asked(_methods(methods), sizes, _shape(expand, ahead, exploration), scorer, reduce)
    # Every method samples several children of a node, and greedy children would be equal.
    configuration.check_siblings(2, temperature)
    if out is not None:
        check_output(Path(out))
    with ExitStack() as stack:
        config = sampling_config(str(model), list(map(str, as_sources(problems))), options)
        # A search samples single steps, and a tool's result belongs to no step: tools are removed.
        config = config.model_copy(update={"tools": configuration.ToolsConfig()})
        sampling = configuration.at_temperature(config.sampling, temperature)
        with show_startup(quiet):
            session, node_scorer, rows = _open(
                asked, config, sampling, problems, max_problems, stack
            )
        check_thinking(session.renderer, rows, session.config.sampling, asks_thinking(options))
        show_sampling(session.generator, stack, quiet)
        file = out and stack.enter_context(open(out, "w", encoding="utf-8"))
        drawer = _drawer(session, sampling, step, asked.shape, node_scorer)
        started = time.perf_counter()
        searching = Searching(
            drawer, session.verifiers, asked.methods, asked.budgets, asked.shape, file
        )
        searching.run(rows, session.renderer.render)
    return SearchResult(
        model=str(model),
        scorer=scorer,
        rows=searching.rows(),
        num_problems=len(rows),
        temperature=temperature,
        longest=sampling.max_tokens,
        step=drawer.step,
        seconds=time.perf_counter() - started,
        out=None if out is None else str(out),
    )


@dataclass(frozen=True)
class _Asked:
    """Methods, budgets, tree shape and scorer of a search."""

    methods: Sequence[str]
    budgets: Sequence[int]
    shape: Shape
    scorer: str | None
    reduce: str | None


def _open(
    asked: _Asked,
    config: TrainConfig,
    sampling: SamplingConfig,
    problems: Rows,
    limit: int | None,
    stack: ExitStack,
) -> tuple[SamplingSession, Scorer | None, Sequence[Problem]]:
    """Open the verifier and the scorer, check that both support the problems, then load the
    model."""
    check_sampling(config)
    if config.server.url is not None:
        found, accepted = (
            "a server",
            "the engine, actors or vLLM: a search continues token by token",
        )
        raise ConfigError(message("server.url", found, accepted, "leave --server out"))
    _check_budgets(asked.budgets, sampling.max_tokens)
    # The rows are not read yet, so only the default effort can be checked here.
    _check_no_injection(asked.methods, sampling, [None])
    verifiers = open_verifiers(config, stack, actors=True)
    scorer = _open_scorer(asked, config, stack)
    judges = [verifiers, *([scorer] if scorer else [])]

    def check(problem: Problem) -> None:
        for judge in judges:
            judge.check_problem(problem)

    on_bad_row = config.data.on_bad_row
    with doing("checking the rows"):
        rows = load_problems(as_sources(problems), on_bad_row=on_bad_row, limit=limit, check=check)
    session = open_sampling(with_slots(config, None), verifiers, stack)
    fitting = fit_heldout(rows, session)
    _check_no_injection(asked.methods, sampling, {row.effort for row in fitting})
    return session, scorer, fitting


def _check_no_injection(
    methods: Sequence[str], sampling: SamplingConfig, efforts: Iterable[str | None]
) -> None:
    """Raise ConfigError for a thinking budget, if a method samples single reasoning steps."""
    trees = [name for name in methods if name not in SAMPLED]
    if trees and any(map(sampling.controls_thinking, efforts)):
        found, accepted = "a thinking budget", "none: a tree samples single steps"
        remedy = f"remove it, or choose among {', '.join(SAMPLED)}"
        raise ConfigError(message(f"--method {trees[0]}", found, accepted, remedy))


def _methods(methods: Sequence[str] | str) -> list[str]:
    names = list(dict.fromkeys(several(methods)))
    for name in names:
        if name not in METHODS:
            remedy = did_you_mean(name, METHODS)
            raise ConfigError(message("--method", name, ", ".join(METHODS), remedy))
    if not names:
        raise ConfigError(message("--method", "none", ", ".join(METHODS)))
    return names


def _shape(expand: int, ahead: int, exploration: float) -> Shape:
    for name, value, least in (("expand", expand, 1), ("ahead", ahead, 1)):
        if value < least:
            raise ConfigError(message(f"--{name}", value, f"a whole number >= {least}"))
    if not 0 <= exploration < float("inf"):
        raise ConfigError(message("--exploration", exploration, "a number >= 0"))
    return Shape(expand, ahead, exploration)


def _check_budgets(budgets: Sequence[int], longest: int) -> None:
    """Raise ConfigError for a token budget that is below the length of one completion."""
    for budget in budgets:
        if budget < longest:
            found = f"{budget}, less than one completion of {longest} tokens"
            accepted, remedy = f"at least {longest}", "raise it, or lower --max-tokens"
            raise ConfigError(message("--budget", found, accepted, remedy))
    if not budgets:
        raise ConfigError(message("--budget", "none", f"a number of tokens, at least {longest}"))


def _open_scorer(asked: _Asked, config: TrainConfig, stack: ExitStack) -> Scorer | None:
    """Open the scorer. Raises ConfigError or VerifierError if a method needs a scorer that is
    missing or unsuitable."""
    needing = [name for name in asked.methods if name not in UNSCORED]
    trees = [name for name in asked.methods if name not in SAMPLED]
    if asked.scorer is None:
        if needing or asked.reduce is not None:
            what = f"--method {needing[0]}" if needing else "--reduce"
            remedy = f"without one choose --method {UNSCORED[0]}"
            raise ConfigError(message(what, "no --scorer", SCORERS, remedy))
        return None
    scorer = open_scorer(asked.scorer, asked.reduce, config, stack)
    if trees and not scorer.scores_beginnings:
        found = f"{asked.scorer}, which judges only whole completions"
        accepted = (
            "a process model, a reward model, or your own function that judges partial completions"
        )
        remedy = f"or choose among {', '.join(SAMPLED)}"
        raise VerifierError(message(f"--scorer for --method {trees[0]}", found, accepted, remedy))
    return scorer


def _drawer(
    session: SamplingSession,
    sampling: SamplingConfig,
    step: str | None,
    shape: Shape,
    scorer: Scorer | None,
) -> Drawer:
    """Create the object that samples nodes with a model; the generator then also renders prompts
    with a prefix.
    """
    session.generator.render = PrefixRenderer(session.renderer)
    tokenizer = session.tokenizer

    def decode(tokens: Tokens) -> str:
        return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    ends = SEPARATORS.get(step, step) if step else (scorer and scorer.split) or "\n"
    limits = StepLimits(sampling.max_tokens, sampling.stop, decode)
    service = None if scorer is None else scorer.service
    return Drawer(session.generator, sampling, limits, ends, shape.expand, service)
