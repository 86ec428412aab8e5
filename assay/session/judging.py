"""What is asked of verifiers alone, without a model: judge completions, attack a verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from assay.config import VerificationConfig
from assay.data.completions import Record, read_completions
from assay.data.problems import check_spec, load_problems
from assay.data.sources import Rows, as_sources, rows_in
from assay.errors import DataError, VerifierError, message
from assay.host.startup import doing
from assay.report.table import Table
from assay.types import Completion, Problem
from assay.verify.redteam.team import RedTeamResult, red_team
from assay.verify.service import Options, VerifierService

Named = str | Callable[..., Any]
"""A verifier: an expression, or a function that can be imported by its name."""


def judge(
    completions: Path | str | Iterable[Mapping[str, Any]],
    verifier: Named = "math",
    *,
    num_workers: int | None = None,
    deadline: float = 5.0,
    options: Options | None = None,
    allow: Sequence[str] = (),
) -> Table:
    """Judge completions from anywhere; return one verdict a row, in order.

        verdicts = assay.judge([{"completion": "3+5 is \\\\boxed{8}", "answer": "8"}], "math")
        verdicts["reward"], verdicts["status"]
        assay.judge("completions.jsonl", "math + think_format*0.1").to_pandas()

    completions: rows, or a file of them; each has a ``completion`` and what its verifier reads, as
    ``answer``. verifier: of rows that name none: a name, a sum, ``package.module:function`` or the
    function. num_workers: worker processes. deadline: seconds a completion. options: of verifiers,
    as ``{"math": {"tolerance": 0.01}}``. allow: Python code that rows may name as their verifier.

    Columns: id, score, reward, components, status, reason, extracted, detail, verifier, seconds. A
    verdict that is ``not_judged`` has no score and no reward. Raises DataError for a row that
    cannot be read, VerifierError for a verifier that cannot be used. (`assay.verify` is the package
    of verifiers; `assay.verify.checker` gives one verifier as a plain function.)
    """
    name = expression_of(verifier)
    settings: dict[str, Any] = {"num_workers": num_workers, "deadline": deadline}
    with VerifierService(name, options=options, allow=allow, **settings) as service:
        return Table(list(judged_rows(completions, name, service)))


def judged_rows(
    completions: Path | str | Iterable[Mapping[str, Any]],
    verifier: str = "math",
    service: VerifierService | None = None,
    **settings: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `judge` one by one: a file may have any number of them.

    settings: of the service, where none is given. Raises DataError (``file.jsonl:12 key: ...``) at
    the first malformed row, after the verdicts of the rows before it.
    """
    ids: dict[int, str] = {}
    failure: list[DataError] = []

    def pairs(service: VerifierService) -> Iterator[tuple[Problem, Completion]]:
        """Read ahead of the verdicts; the first malformed row ends it and is kept."""
        try:
            for number, (problem, completion) in enumerate(_read(completions)):
                check_spec(problem, service.check_problem)
                check_spec(problem, partial(refuse_siblings, service))
                ids[number] = problem.id
                yield problem, completion
        except DataError as error:
            failure.append(error)

    with ExitStack() as stack:
        if service is None:
            service = stack.enter_context(VerifierService(verifier, **settings))
        service.check([verifier])
        for number, verdict in enumerate(service.judge_text(pairs(service))):
            found = {"id": ids.pop(number), **verdict.as_dict()}
            yield {**found, "seconds": round(verdict.seconds, 6)}
        if failure:
            raise failure[0]


def refuse_siblings(service: VerifierService, problem: Problem) -> None:
    """Raise VerifierError where the verifiers of a row cannot judge it without its siblings."""
    if names := service.compares_siblings(problem):
        found = "a verifier that compares the completions of one problem"
        accepted = "one that judges each completion by itself: rows are judged one by one"
        remedy = "leave it out; assay verify --rescore RUN judges a run's groups as wholes"
        raise VerifierError(message(f"verifier {names[0]}", found, accepted, remedy))


def _read(completions: Any) -> Iterator[tuple[Problem, Completion]]:
    if isinstance(completions, str | Path):
        found = read_completions(Path(completions))
    else:
        rows = enumerate(rows_in(completions))
        found = (Record.read(row, f"rows:{number}", str(number)) for number, row in rows)
    yield from (record.to_judge() for record in found)


def redteam(
    verifier: Named,
    problems: Rows | None = None,
    *,
    suite: str | None = None,
    key: str = "answer",
    num_workers: int | None = None,
    deadline: float = 10.0,
    options: Options | None = None,
) -> RedTeamResult:
    """Try known reward hacks on a verifier, a built-in one or your own; return what it accepted.

        result = assay.redteam("my_rewards:concise", "problems.jsonl")
        print(result)  # a line for each kind of attack, and what got through
        result.held  # True where nothing did, and the verifier passed an honest control
        result.findings  # each case that went wrong

    problems: sources or rows of yours to attack; None: the suite's own. suite: the attacks to use;
    None: those that fit the verifier. key: of the expected answer in your rows.

    The other parameters are those of `judge`. Raises VerifierError or DataError for what cannot be
    used.
    """
    return red_team(
        expression_of(verifier),
        None if problems is None else load_problems(as_sources(problems)),
        suite=suite,
        key=key,
        num_workers=num_workers,
        deadline=deadline,
        options=options,
    )


@doing("starting the verifiers")
def open_service(settings: VerificationConfig, expression: str, **more: Any) -> VerifierService:
    """Start verifiers as a configuration has them.

    expression: of rows that name none. more: as `VerifierService` has it; what it allows is added.
    """
    how = {
        "num_workers": settings.num_workers,
        "deadline": settings.deadline,
        "options": settings.options,
        "schedule": settings.schedule,
        "cache_mib": settings.cache_mib,
    }
    allow = [*settings.allow, *more.get("allow", ())]
    return VerifierService(expression, **{**how, **more, "allow": allow})


def expression_of(verifier: Named) -> str:
    """Return the expression that names a verifier; a worker imports a function by its name."""
    if isinstance(verifier, str):
        return verifier
    module, name = getattr(verifier, "__module__", ""), getattr(verifier, "__qualname__", "")
    if module in ("", None, "__main__") or not name.isidentifier():
        found = f"{name or verifier!r}, which no other process can import"
        accepted = "a verifier's name, or a function at the top of a file"
        remedy = (
            "write it to a file (in a notebook: a cell that begins with %%writefile rewards.py)"
        )
        raise VerifierError(message("verifier", found, accepted, remedy))
    return f"{module}:{name}"
