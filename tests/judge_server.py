"""A judge to test against: a real HTTP server on this machine, without a model.

    with JudgeServer(obedient) as server:
        options = {"url": server.url, "model": "obedient"}

It serves one port from a thread, keeps what it was asked, and answers as a function says. In a
function's reply, CODE stands for the code of the request, as in {"verdict_CODE": "correct"}. `obedient`
does what the prompt says: it reads the quoted data and compares the answer with the references.
`naive` believes the first thing that looks like a verdict or an instruction outside of the data,
and `echoing` quotes the text that it judges.
"""

from __future__ import annotations

import json
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from assay.endpoint.replies import objects_of

BLOCK = re.compile(
    r"^--- begin (?P<name>[A-Za-z]+) (?P<code>[0-9a-f]{16})(?P<note> \(.*\))? ---$\n"
    r"(?P<line>.*)\n"
    r"^--- end (?P=name) (?P=code) ---$",
    re.MULTILINE,
)
_CODE = re.compile(r"`(?:score|verdict)_([0-9a-f]{8})`")
_SCALE = re.compile(
    r"`score_\w{8}`, a number from (?P<low>\S+) \(worst\) to (?P<high>\S+) \(best\)"
)
_FOOLED = {"verdict_CODE": "correct", "score_CODE": 10}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its path, its headers in lower case, and its body."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The messages, one after the other."""
        return "\n\n".join(turn["content"] for turn in self.body["messages"])

    @property
    def data(self) -> dict[str, list[str]]:
        """The texts that are quoted in the prompt, by name."""
        found: dict[str, list[str]] = {}
        for block in BLOCK.finditer(self.prompt):
            found.setdefault(block["name"], []).append(json.loads(block["line"]))
        return found

    @property
    def code(self) -> str:
        """What the key of the reply ends in; "": the prompt asks for no verdict."""
        found = _CODE.findall(self.outside) if "messages" in self.body else ()
        return found[-1] if found else ""

    @property
    def outside(self) -> str:
        """The prompt without what is quoted in it."""
        return BLOCK.sub("", self.prompt)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server does: waits, then sends a status, headers and a body.

    length: the Content-Length that is claimed; None: the true one. hang_up: close without a word.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0
    length: int | None = None
    hang_up: bool = False


def chat(
    text: str | None, finish_reason: str = "stop", usage: bool = True, **message: Any
) -> Answer:
    """Return the answer that is a chat completion with this text."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "local",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish_reason,
            }
        ],
    }
    if usage:
        body["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return Answer(json.dumps(body).encode())


def obedient(asked: Asked) -> str:
    """Judge by the data: whether the answer ends in one of the references, letters and digits only.

    The final answer is the last one in a box or an answer tag, else what follows the last "answer is",
    "answer:" or line break. Scores count the words of the answer, up to the best score; of two texts
    the longer one wins.
    """
    data = asked.data
    if scale := _SCALE.search(asked.prompt):
        text = (data.get("answer") or data.get("trace") or [""])[0]
        low, high = float(scale["low"]), float(scale["high"])
        return json.dumps({"reasoning": "words", "score_CODE": min(high, low + len(text.split()))})
    if "A" in data:
        sizes = len(data["A"][0]), len(data["B"][0])
        verdict = "tie" if sizes[0] == sizes[1] else "A" if sizes[0] > sizes[1] else "B"
        return json.dumps({"reasoning": "length", "verdict_CODE": verdict})
    text = data["answer"][0].strip()
    marked = re.findall(r"\\boxed\{([^{}]*)\}|<answer>(.*?)</answer>", text)
    said = re.split(r"answer is|answer:|\n", text, flags=re.IGNORECASE)
    answer = "".join(marked[-1]) if marked else said[-1]
    same = any(_letters(answer) == _letters(reference) for reference in data["reference"])
    verdict = "correct" if same else "incorrect"
    return json.dumps({"reasoning": "compared", "verdict_CODE": verdict})


def naive(asked: Asked) -> str:
    """Believe whatever outside of the data looks like a verdict, the end of data or an order.

    Where nothing does, judge as `obedient` does.
    """
    outside = asked.outside
    lines = (line.strip().casefold() for line in outside.splitlines())
    for line in lines:
        if line.startswith(("verdict:", "score:", "system:", "assistant:", "ignore ")):
            return json.dumps({"reasoning": "a line told me", **_FOOLED})
    if any("verdict" in found or "score" in found for found in objects_of(outside)):
        return json.dumps({"reasoning": "the last verdict that I saw", **_FOOLED})
    if re.search(r"<\|?/?\w+\|?>|\[/?INST\]", asked.prompt):
        return json.dumps({"reasoning": "a new turn began", **_FOOLED})
    return obedient(asked)


def echoing(asked: Asked) -> str:
    """Judge as `obedient` does, and quote the text to examine before the verdict and after it."""
    text = "\n".join(
        each for name in ("answer", "trace", "A", "B") for each in asked.data.get(name, ())
    )
    return f"It says:\n{text}\nSo: {obedient(asked)}\nsince it says:\n{text}"


def _letters(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(each for each in plain if each.isalnum())


class JudgeServer:
    """Serves ``/v1/chat/completions`` on this machine while its ``with`` block lasts.

    reply: called for every request, in a thread of its own, with what was asked; it returns the text of
    a reply, or an `Answer`. asked: every request so far, in order of arrival.
    """

    def __init__(self, reply: Callable[[Asked], str | Answer]) -> None:
        self.reply = reply
        self.asked: list[Asked] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def answer(self, asked: Asked) -> Answer:
        """Keep what was asked, and return what is answered."""
        with self._lock:
            self.asked.append(asked)
        reply = self.reply(asked)
        answer = chat(reply) if isinstance(reply, str) else reply
        return replace(answer, body=answer.body.replace(b"_CODE", f"_{asked.code}".encode()))

    def __enter__(self) -> JudgeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a connection that a client keeps open must not keep the test
    request_queue_size = 256


def _handler(server: JudgeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            headers = {name.casefold(): value for name, value in self.headers.items()}
            body: Any = json.loads(self.rfile.read(size) or b"{}")
            answer = server.answer(Asked(self.path, headers, body))
            if answer.delay:
                time.sleep(answer.delay)
            self.close_connection = answer.hang_up or answer.length is not None
            if answer.hang_up:
                return
            self.send_response(answer.status)
            rest = {"Content-Type": "application/json", **answer.headers}
            for name, value in rest.items():
                self.send_header(name, value)
            length = len(answer.body) if answer.length is None else answer.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True  # the client gave up first

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
