"""HTTP server of the viewer on a loopback address, protected by a random token in the URL.

    GET /TOKEN/           list of runs            GET /TOKEN/run        one run
    GET /TOKEN/compare    several runs            GET /TOKEN/curves     live data of runs, JSON
    GET /TOKEN/rollouts   filtered rollouts       GET /TOKEN/rollout    one rollout
    GET /TOKEN/step       groups of a step        GET /TOKEN/problem    one problem in all steps
    GET /TOKEN/label      next item to label      POST /TOKEN/label, /TOKEN/undo   a person's answer

The server only reads files, except that people's answers are appended to the labels of a run. A
server without a guide (`Labelling`) takes no answers. URLs identify a run by its path, and only
listed runs can be opened.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from assay.errors import RunError, UserError, message
from assay.host.terminal import say
from assay.report.report import template
from assay.report.selection import selection_of
from assay.report.viewer import completion_view, rollout_views, run_views
from assay.report.viewer.labelling import MOST_BYTES, Labelling
from assay.report.viewer.opened import OpenedRun, OpenedRuns
from assay.report.viewer.page import FORM_HEADERS, HEADERS, Links
from assay.scale.http_server import Refused, Server, json_response
from assay.scale.listening import address_of, bind, check_extra, run_server

if TYPE_CHECKING:
    from starlette.datastructures import Headers, QueryParams
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope

    from assay.scale.http_server import Endpoint

INDEX_SECONDS = 0.4
"""Maximum time that a page waits for the index. The page then shows partial results and reloads."""
_SLICE = 0.05
"""Seconds for which the background reader locks the index at a time."""
_MOST_RUNS = 8
_MOST_FIELDS = 2000
_ASSETS = {"view.css": "text/css", "view.js": "text/javascript"}
_SHARED = {"report.css": "text/css", "charts.js": "text/javascript"}
"""Files of the report's template that the viewer's pages load too."""


def serve_view(places: Sequence[Path], port: int, labelling: Labelling | None = None) -> None:
    """Serve the viewer until a signal arrives. labelling: None for a viewer that only reads.

    Raises UserError, for example for a missing folder.
    """
    check_extra("run view")
    if labelling is not None:
        labelling.check()
    for place in places:
        if not place.is_dir():
            remedy = "name yours, or train a run first"
            accepted = "a run directory, or a folder of runs"
            raise RunError(message("assay run view", str(place), accepted, remedy))
    # Other users of the machine, and websites in the user's browser, can reach loopback ports.
    token = secrets.token_urlsafe(24)
    with bind("127.0.0.1", port, None) as listening, suppress(KeyboardInterrupt):
        say(f"open {address_of(listening)}/{token}/  (Ctrl-C ends it)")
        app = ViewServer([one.absolute() for one in places], token, labelling)
        run_server(app, listening)


class ViewServer(Server):
    """The server application.

    places: run directories, and folders that contain runs. labelling: None for a viewer that only
    reads.
    """

    accepted = "GET of a page of the viewer"
    most_bytes = MOST_BYTES
    # HTML forms cannot send JSON, and pages without scripts have only forms.
    body_type = "application/x-www-form-urlencoded"

    def __init__(
        self, places: Sequence[Path], token: str, labelling: Labelling | None = None
    ) -> None:
        self.labelling = labelling
        super().__init__(None, max_waiting=64)
        self.links = Links(f"/{token}", labels=labelling is not None)
        self.runs = OpenedRuns(places)
        self._threads = ThreadPoolExecutor(4, "assay-view")
        self._closing = Event()
        self._reading: set[str] = set()

    def authorize(self, scope: Scope, headers: Headers) -> None:
        """Refuse a URL path without the token. Remove the token from the path of the request."""
        _, _, rest = scope["path"].partition("/")
        token, _, rest = rest.partition("/")
        given = f"/{token}".encode("utf-8", "surrogateescape")
        # A comparison in constant time, so that response times do not reveal the token.
        if not hmac.compare_digest(given, self.links.base.encode()):
            raise Refused(404, "open the URL that `assay run view` printed")
        scope["path"] = f"/{rest}"

    def endpoints(self) -> Mapping[tuple[str, str], Endpoint]:
        """Return the endpoints by method and path."""
        pages: dict[str, Callable[[QueryParams], str]] = {
            "/": self._list,
            "/run": self._run,
            "/compare": self._compare,
            "/rollouts": self._rollouts,
            "/rollout": self._rollout,
            "/step": self._step,
            "/problem": self._problem,
        }
        found = {("GET", path): self._page(render) for path, render in pages.items()}
        if self.labelling is not None:
            found[("GET", "/label")] = self._page(self._label, FORM_HEADERS)
            found[("POST", "/label")] = self._answer(self.labelling.record)
            found[("POST", "/undo")] = self._answer(self.labelling.undo)
        found[("GET", "/curves")] = self._curves
        found[("GET", "/assets/{name}")] = self._asset
        return found

    async def close(self) -> None:
        """Stop the background reader."""
        self._closing.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _page(
        self, render: Callable[[QueryParams], str], headers: Mapping[str, str] = HEADERS
    ) -> Endpoint:
        """Return the endpoint of a page. render: function of the query that returns the HTML."""

        async def respond(request: Request) -> Response:
            from starlette.responses import Response

            # The page is rendered in a thread,
            # because reading files would block all other requests.
            loop = asyncio.get_running_loop()
            status = 200
            try:
                text = await loop.run_in_executor(self._threads, render, request.query_params)
            except Refused as refused:
                status, text = refused.status, self._refusal(str(refused))
            except UserError as error:
                # A file that people edit is damaged: the labels of a run, or the guide.
                status, text = 409, self._refusal(str(error), "A damaged file")
            raw = text.encode("utf-8", "xmlcharrefreplace")
            return Response(raw, status, headers, "text/html; charset=utf-8")

        return respond

    def _answer(self, take: Callable[[Links, OpenedRun, Mapping[str, str]], str]) -> Endpoint:
        """Return the endpoint of a form. take: function of the form's run and fields that returns
        the URL of the next page."""

        async def respond(request: Request) -> Response:
            from starlette.responses import Response

            # `Server` refuses the origin of another page. Every browser sends an origin with a
            # form, so a request without one comes from no page of the viewer.
            if request.headers.get("origin") is None:
                raise Refused(403, "Origin: accepted: that of this server")
            async with self.body(request) as raw:
                fields = form_fields(raw)
            loop = asyncio.get_running_loop()

            def answered() -> str:
                return take(self.links, self._opened(fields), fields)

            try:
                place = await loop.run_in_executor(self._threads, answered)
            except Refused as refused:
                text = self._refusal(str(refused), "Not saved")
                raw = text.encode("utf-8", "xmlcharrefreplace")
                return Response(raw, refused.status, HEADERS, "text/html; charset=utf-8")
            # With status 303 the browser gets the next page, and reloading it sends nothing again.
            return Response(status_code=303, headers={**HEADERS, "location": place})

        return respond

    def _refusal(self, said: str, title: str = "Not found") -> str:
        from assay.report.rollout_pages import safe

        return self.links.page(title, [], f"<h1>{title}</h1><p>{safe(said)}</p>")

    def _label(self, asked: QueryParams) -> str:
        assert self.labelling is not None
        return self.labelling.page(self.links, self._indexed(asked), asked)

    async def _asset(self, request: Request) -> Response:
        from starlette.responses import Response

        name = request.path_params["name"]
        # Only files with known names are served, so that a name such as ".." reaches no other file.
        if name in _SHARED:
            return Response(template(name), headers=HEADERS, media_type=_SHARED[name])
        if name not in _ASSETS:
            raise Refused(404, "no such file")
        folder = resources.files("assay.report.viewer") / "assets"
        text = (folder / name).read_text(encoding="utf-8")
        return Response(text, headers=HEADERS, media_type=_ASSETS[name])

    async def _curves(self, request: Request) -> Response:
        """Send the live data of runs; 304 if nothing has changed since the client's ETag."""
        from starlette.responses import Response

        loop, asked = asyncio.get_running_loop(), request.query_params.getlist("run")
        runs = [run for key in asked[:_MOST_RUNS] if (run := self.runs.get(key)) is not None]
        records = [await loop.run_in_executor(self._threads, run.records) for run in runs]
        # The last data may have been sent while the run was in progress, so the tag has its state.
        tag = '"' + "+".join(f"{one.version}.{one.listed.state}" for one in records) + '"'
        if records and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**HEADERS, "etag": tag})

        def render() -> list[dict[str, Any]]:
            return [run_views.curves(*pair) for pair in zip(runs, records, strict=True)]

        found = await loop.run_in_executor(self._threads, render)
        value = {"runs": found, "gone": [key for key in asked if self.runs.get(key) is None]}
        return json_response(value, headers={**HEADERS, "etag": tag})

    def _list(self, asked: QueryParams) -> str:
        return run_views.list_page(self.links, self.runs.listed(), asked.get("word", ""))

    def _run(self, asked: QueryParams) -> str:
        run = self._opened(asked)
        # Users usually open the rollouts next, so their index is built in advance.
        self._read_ahead(run)
        return run_views.run_page(self.links, run, run.records())

    def _compare(self, asked: QueryParams) -> str:
        keys = dict.fromkeys(asked.getlist("run"))
        found = [run for key in keys if (run := self.runs.get(key)) is not None][:_MOST_RUNS]
        if not found:
            raise Refused(404, "mark the runs to compare in the list of runs")
        return run_views.compare_page(self.links, [(run, run.records()) for run in found])

    def _rollouts(self, asked: QueryParams) -> str:
        run, page = self._indexed(asked), asked.get("page", "")
        number = int(page) if page.isdecimal() and len(page) < 10 else 1
        selection = selection_of(asked)
        return rollout_views.rollouts_page(self.links, run, selection, number)

    def _step(self, asked: QueryParams) -> str:
        run, step = self._indexed(asked), selection_of(asked).step
        return self._found(rollout_views.step_page(self.links, run, step), f"step {step}", run)

    def _problem(self, asked: QueryParams) -> str:
        run, id = self._indexed(asked), asked.get("id", "")
        return self._found(rollout_views.problem_page(self.links, run, id), f"problem {id}", run)

    def _rollout(self, asked: QueryParams) -> str:
        run, step, id = self._opened(asked), selection_of(asked).step or 0, asked.get("id", "")
        config = run.records().config
        model = None if config is None else config.model.path
        page = completion_view.rollout_page(
            self.links, run, step, id, asked.get("color", ""), model
        )
        return self._found(page, f"rollout {id} in step {step}", run)

    def _found(self, page: str | None, what: str, run: OpenedRun) -> str:
        if page is None:
            waiting = f"; {run.index.pending} files are not read yet" if run.index.pending else ""
            raise Refused(404, f"{run.key}: no {what}; it may have been rolled back{waiting}")
        return page

    def _opened(self, asked: Mapping[str, str]) -> OpenedRun:
        run = self.runs.get(asked.get("run", ""))
        if run is None:
            raise Refused(404, f"no run {asked.get('run', '')!r}; it may have been deleted")
        return run

    def _indexed(self, asked: QueryParams) -> OpenedRun:
        """Return a run after an update of its index of at most `INDEX_SECONDS`."""
        run = self._opened(asked)
        run.index.refresh(INDEX_SECONDS)
        self._read_ahead(run)
        return run

    def _read_ahead(self, run: OpenedRun) -> None:
        """Index the remaining shards of a run, and cache its texts for searches, in a thread."""
        if run.key in self._reading or self._closing.is_set():
            return
        self._reading.add(run.key)

        def read() -> None:
            try:
                is_left = True
                while is_left and not self._closing.is_set():
                    run.index.refresh(_SLICE)
                    is_left = run.index.pending > 0 or run.index.keep_texts(_SLICE)
            finally:
                self._reading.discard(run.key)

        self._threads.submit(read)


def form_fields(raw: bytes) -> dict[str, str]:
    """Parse the body of an HTML form. Raises Refused."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Refused(400, f"accepted: a form of at most {_MOST_FIELDS} fields") from error
    return dict(pairs)
