"""A hostile crowd in front of both servers: they go on, their memory and their logs stay small."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from openai_server import Model, served
from processes import until

pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "assay-rl[serve]"')
httpx2 = pytest.importorskip("httpx2", reason='needs httpx2: pip install "assay-rl[judge]"')

SECONDS = 25.0
ROUTE = '[route]\nby = "length"\nthreshold = 10\n[cheap]\nurl = "{0}"\nmodel = "a"\ntimeout = 2\n[strong]\nurl = "{0}"\nmodel = "b"\n'
GOOD = {
    "/judge": {"rows": [{"prompt": "1+1=", "answer": "2", "completion": "2"}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "1+1="}]},
}
WORDS = [
    None,
    True,
    0,
    -1,
    1e308,
    "",
    "x",
    "\ud800",
    [],
    {},
    [1],
    ["cheap"],
    {"a": [1]},
    "math" * 9000,
]
KEYS = [
    "rows",
    "seconds",
    "messages",
    "model",
    "stream",
    "stream_options",
    "metadata",
    "verifier",
    "completion",
]


def spoiled(path: str, random_: random.Random) -> bytes:
    """Return a request of the kind that a broken or hostile client sends."""
    body = json.loads(json.dumps(GOOD[path]))
    inner = body.get("rows", body.get("messages"))[0]
    for _ in range(random_.randint(1, 3)):
        random_.choice([body, inner])[random_.choice(KEYS)] = random_.choice(WORDS)
    raw = json.dumps(body).encode()
    raw = random_.choice([raw, raw, raw[:-3], b"[" * 5000, random_.randbytes(50)])
    kind = random_.choice(["application/json"] * 5 + ["text/plain"])
    length = random_.choice([len(raw)] * 5 + [len(raw) + 9, 10**12])
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
    whole = f"{head}content-length: {length}\r\n\r\n".encode() + raw
    return random_.choice([whole, whole, whole, whole[:40], random_.randbytes(200)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "path"),
    [("verifier serve", "/judge"), ("model route", "/v1/chat/completions")],
)
def test_a_server_outlives_a_hostile_crowd(command: str, path: str, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        arguments = ["--port", "0"]
        if command == "model route":
            config = tmp_path / "route.toml"
            config.write_text(ROUTE.format(stack.enter_context(served(Model("two")))))
            arguments = [str(config), *arguments]
        said = stack.enter_context(log.open("wb"))
        limit = f"ulimit -Sn 1024; ulimit -Hn 1024; exec {sys.executable} -m assay.cli {command} {' '.join(arguments)}"
        process = subprocess.Popen(["bash", "-c", limit], stderr=said, stdout=said)
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert until(lambda: "http://" in log.read_text(), 120.0), log.read_text()
        port = int(log.read_text().split("http://")[1].split("/")[0].split(":")[1])
        base = f"http://127.0.0.1:{port}"
        assert (
            httpx2.post(base + path, json=GOOD[path], timeout=60, trust_env=False).status_code
            == 200
        )
        memory = rss(process.pid)
        # More than there are files, and none of them ever says a word.
        half = [stack.enter_context(socket.socket()) for _ in range(1100)]
        for one in half:
            one.connect(("127.0.0.1", port))
        random_, end, num_asked = random.Random(7), time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=60) as one,
                contextlib.suppress(OSError),
            ):
                one.sendall(spoiled(path, random_))
                one.settimeout(0.05)
                if random_.random() < 0.7:
                    one.recv(4096)
            num_asked += 1
            if num_asked % 50 == 0:
                assert httpx2.get(f"{base}/health", timeout=60, trust_env=False).status_code == 200
        assert num_asked > 100
        reply = httpx2.post(base + path, json=GOOD[path], timeout=60, trust_env=False)
        assert reply.status_code == 200
        assert until(lambda: health(base)["waiting"] == 0, 90.0)
        assert rss(process.pid) < memory + 200 * 2**20
        text = log.read_text()
        assert "Traceback" not in text and "a request failed" not in text, text[-3000:]
        assert len(text) < 2_000_000


def health(base: str) -> dict[str, Any]:
    return httpx2.get(f"{base}/health", timeout=60, trust_env=False).json()


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
