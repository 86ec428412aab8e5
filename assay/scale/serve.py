"""Verifier service over HTTP.

    GET  /verifiers/NAME  version and hash of the verifier with this name
    POST /judge      {"rows": [...], "seconds": 30}: rows in the format of `assay verify`; the reply
                     {"verdicts": [...]} has one verdict per row, in order; for a verifier that
                     scores steps, with "step_scores": (score, last token) of each step

A request that exceeds its seconds is canceled (504). If a client disconnects, its request is
canceled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from assay.data.completions import Record
from assay.errors import AssayError, DataError, UserError, message
from assay.scale.http_server import Refused, Server, json_response, while_there
from assay.types import Group, Problem, Prompt, Verdict
from assay.verify.service import VerifierService

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive

    from assay.scale.http_server import Endpoint

MOST_SECONDS = 1700.0
Asked = TypeVar("Asked")
Found = TypeVar("Found")


class VerifierServer(Server):
    """The server application.

    max_waiting: maximum number of completions, over all requests, that wait or are being judged.
    seconds: default time limit for a request.
    """

    accepted = "POST /judge, GET /verifiers/NAME"

    def __init__(
        self,
        service: VerifierService,
        token: str | None = None,
        max_waiting: int = 4096,
        seconds: float = 300.0,
    ) -> None:
        super().__init__(token, max_waiting)
        self.service = service
        self.seconds = seconds
        # With two threads, slow row checks of one client do not block all other clients.
        self._checks = ThreadPoolExecutor(2, "assay-checks")

    def endpoints(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the endpoint that judges rows, and the endpoint that describes a verifier."""
        return {("GET", "/verifiers/{name:path}"): self._verifier, ("POST", "/judge"): self._judge}

    def health(self) -> dict[str, Any]:
        """Report whether the service can judge completions."""
        failure = self.service.engine.pool.failure
        if self.service.engine.closed or failure is not None:
            raise Refused(503, f"no verdicts: {failure or 'closed'}")
        return super().health()

    async def _verifier(self, request: Request) -> Response:
        name = request.path_params["name"]
        return json_response(await self._off_the_loop(request.receive, self._facts, name))

    async def _judge(self, request: Request) -> Response:
        async with self.body(request) as raw:
            return json_response(await self._judged(raw, request.receive))

    async def _off_the_loop(
        self, receive: Receive, work: Callable[[Asked], Found], asked: Asked
    ) -> Found:
        """Run ``work`` in a thread, because row checks and imports would block the event loop."""
        loop = asyncio.get_running_loop()

        async def done() -> Found:
            return await loop.run_in_executor(self._checks, work, asked)

        try:
            return await while_there(receive, done(), self.seconds)
        except TimeoutError as error:
            raise Refused(504, f"not checked in {self.seconds:g} s") from error

    async def close(self) -> None:
        """Stop the threads."""
        self._checks.shutdown(wait=False, cancel_futures=True)

    def _facts(self, name: str) -> dict[str, Any]:
        if self.service.compares_siblings(Problem("facts", "", verifier=name)):
            accepted = "a verifier that judges each completion by itself: rows have no siblings"
            raise Refused(404, message("/verifiers", repr(name), accepted))
        try:
            self.service.check([name])
        except AssayError as error:
            raise Refused(404, str(error)) from error
        found = self.service.describe().get(name.partition("@")[0])
        if found is None:
            raise Refused(404, message("/verifiers", repr(name), "the name of one verifier"))
        # The source code of the verifier stays private, so the reply omits it.
        return {key: found[key] for key in found if key != "source"}

    async def _judged(self, raw: bytes, receive: Receive) -> dict[str, Any]:
        groups, ids, seconds = await self._off_the_loop(receive, self._read, raw)
        with self.room(len(groups), "completions"):
            try:
                judging = self.service.judge_async(groups)
                verdicts = [found[0] for found in await while_there(receive, judging, seconds)]
            except TimeoutError as error:
                raise Refused(504, f"not judged in {seconds:g} s") from error
            except AssayError as error:
                raise Refused(500, str(error)) from error
        rows = [{"id": id, **_as_row(one)} for id, one in zip(ids, verdicts, strict=True)]
        return {"verdicts": rows}

    def _read(self, raw: bytes) -> tuple[list[Group], list[str], float]:
        """Parse a request of /judge. Raises Refused with the row and the key that are invalid."""
        try:
            asked = json.loads(raw)
            rows, seconds = asked["rows"], asked.get("seconds", self.seconds)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            accepted = 'a JSON object {"rows": [...], "seconds": 30}'
            raise Refused(400, message("body", f"{type(error).__name__}", accepted)) from error
        in_range = type(seconds) in (int, float) and 0 < seconds <= MOST_SECONDS
        if not isinstance(rows, list) or not in_range:
            accepted = f"rows: a list; seconds: a number from 0 to {MOST_SECONDS:g}"
            raise Refused(400, message("body", "another form", accepted))
        try:
            pairs = [self._pair(row, number) for number, row in enumerate(rows)]
        except UserError as error:
            raise Refused(400, str(error)) from error
        groups = [
            Group(problem, Prompt(problem.question, one.tokens[:0], one.think), (one,))
            for problem, one in pairs
        ]
        return groups, [problem.id for problem, _ in pairs], float(seconds)

    def _pair(self, row: Any, number: int) -> tuple[Problem, Any]:
        if not isinstance(row, dict):
            raise DataError(message(f"rows:{number}", type(row).__name__, "a JSON object"))
        problem, completion = Record.read(row, f"rows:{number}", str(number)).to_judge()
        self.service.check_problem(problem)
        return problem, completion

    def counts(self) -> Iterator[str]:
        """Yield the number of lost worker processes, and the number of verdicts by verifier."""
        stats = self.service.stats
        yield "# TYPE assay_worker_losses_total counter"
        yield f"assay_worker_losses_total {stats['kills'] + stats['deaths']}"
        yield "# TYPE assay_verdicts_total counter"
        for name, one in stats["verifiers"].items():
            label = f'verifier="{name}"'
            missing = sum(one["not_judged"].values())
            yield f'assay_verdicts_total{{{label},judged="yes"}} {one["count"] - missing}'
            yield f'assay_verdicts_total{{{label},judged="no"}} {missing}'
            for p in (50, 95):
                yield f'assay_seconds{{{label},quantile="0.{p}"}} {one[f"p{p}"]:g}'


def _as_row(verdict: Verdict) -> dict[str, Any]:
    row = verdict.as_dict()
    if verdict.step_scores:
        row["step_scores"] = [[step.score, step.end] for step in verdict.step_scores]
    return row
