"""Judge completions and try reward hacks on verifiers, without a model."""

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
    """Judge completions; return a table that has one verdict per row, in order.

        verdicts = assay.judge([{"completion": "3+5 is \\\\boxed{8}", "answer": "8"}], "math")
        verdicts["reward"], verdicts["status"]
        assay.judge("completions.jsonl", "math + think_format*0.1").to_pandas()

    completions: rows, or a file of rows. Each row has a ``completion``, and the keys that its
    verifier reads, such as ``answer``. verifier: verifier of rows that name none: a name, a sum,
    ``package.module:function`` or a function. num_workers: worker processes. deadline: seconds per
    completion. options: options by verifier name, such as ``{"math": {"tolerance": 0.01}}``. allow:
    names of Python functions that rows may name as their verifier.

    Columns: id, score, reward, components, status, reason, extracted, detail, verifier, seconds. A
    verdict that is ``not_judged`` has no score and no reward. Raises DataError for an unreadable
    row, VerifierError for an invalid verifier. (`assay.verify` is the package of verifiers;
    `assay.verify.checker` returns one verifier as a plain function.)
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
    """Yield the verdict rows of `judge` one by one, so that a file can have any number of rows.

    settings: arguments for the `VerifierService` that is created if ``service`` is None. Raises
    DataError (``file.jsonl:12 key: ...``) at the first malformed row, after yielding the verdicts
    of all earlier rows.
    """
    # Memory must not grow with the file, so an id is removed when its verdict arrives.
    ids: dict[int, str] = {}
    failure: list[DataError] = []

    def pairs(service: VerifierService) -> Iterator[tuple[Problem, Completion]]:
        """Read rows before their verdicts are needed; stop at a malformed row, and record its
        error.
        """
        try:
            for number, (problem, completion) in enumerate(_read(completions)):
                check_spec(problem, service.check_problem)
                check_spec(problem, partial(refuse_siblings, service))
                ids[number] = problem.id
                yield problem, completion
        # The verdicts of rows before a malformed row come first, so its error is raised later.
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
    """Raise VerifierError if a row's verifier compares completions of a group, because rows are
    judged one by one.
    """
    if names := service.compares_siblings(problem):
        found = "a verifier that compares the completions of one problem"
        accepted = "a verifier of single completions: rows are judged one by one"
        remedy = "remove it; assay verify --rescore RUN judges whole groups of a run"
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
    """Test a verifier, built in or your own, against known reward hacks; return the findings.

        result = assay.redteam("my_rewards:concise", "problems.jsonl")
        print(result)  # one line per kind of attack, with the accepted hacks
        result.held  # True if no hack was accepted and the honest control passed
        result.findings  # each failed case

    problems: sources or rows to attack; None: the problems of the suite. suite: name of the suite
    of attacks; None selects the suite that fits the verifier. key: key of the expected answer in
    the rows.

    The other parameters of this function are those of `judge`. Raises VerifierError or DataError
    for invalid input.
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
    """Start the verifiers that a configuration names.

    expression: verifier for rows that name no verifier. more: further arguments of
    `VerifierService`; ``allow`` extends the configured value.
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
    """Return a verifier's expression; for a function, the name under which workers can import
    it."""
    if isinstance(verifier, str):
        return verifier
    module, name = getattr(verifier, "__module__", ""), getattr(verifier, "__qualname__", "")
    if module in ("", None, "__main__") or not name.isidentifier():
        found = f"{name or verifier!r}, which other processes cannot import"
        accepted = "a verifier's name, or a function at the top of a file"
        remedy = (
            "write it to a file (in a notebook: a cell that begins with %%writefile rewards.py)"
        )
        raise VerifierError(message("verifier", found, accepted, remedy))
    return f"{module}:{name}"
