"""Child process of `assay.data.template` that renders chat templates; run as a script.

Requests and replies are JSON texts, each preceded by its length as eight bytes. The address space
of the rendering process is limited. An alarm ends the rendering process if its parent process died
and cannot end it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

# Maximum number of characters of an error message in a reply.
MOST_SHOWN = 500


def main(memory_bytes: int, most_characters: int) -> None:
    """Render the requests on standard input until the input ends."""
    asked, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Standard output is redirected to standard error: a library's output would corrupt the replies.
    os.dup2(2, 1)
    # Transformers' own function creates the Jinja environment.
    # An own copy of the environment would differ from that of later versions of Transformers.
    from transformers.utils.chat_template_utils import render_jinja_template

    render: Any = render_jinja_template
    # The memory limit is added to the memory that the process uses after importing Transformers.
    limit_memory(memory_bytes)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _write(replies, {"ready": True})
    while head := asked.read(8):
        seconds, options = json.loads(asked.read(int.from_bytes(head, "big")))
        # The default action of SIGALRM ends the process even inside one long C operation.
        # A Python signal handler would run only after the C operation has ended.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        reply = _reply(render, options, most_characters)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _write(replies, reply)


def limit_memory(memory_bytes: int) -> None:
    """Limit the address space of the process to its current use plus ``memory_bytes``."""
    # macOS has no /proc and does not enforce RLIMIT_AS; there, only the time limit applies.
    statm = Path("/proc/self/statm")
    used = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 2**32
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = used + memory_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _reply(render: Any, options: dict[str, Any], most_characters: int) -> dict[str, str]:
    try:
        ((text,), _) = render(**options)
        if len(text) <= most_characters:
            return {"text": text}
        return {"kind": "ValueError", "said": f"{len(text):,} characters, of {most_characters:,}"}
    except MemoryError:
        return {"kind": "MemoryError", "said": ""}
    except BaseException as error:  # A template is a foreign program and may raise any exception.
        return {"kind": type(error).__name__, "said": _words(error)}


def _words(error: BaseException) -> str:
    try:
        return str(error)[:MOST_SHOWN]
    except BaseException:  # The `__str__` method of a foreign exception may raise too.
        return ""


def _write(replies: BinaryIO, reply: dict[str, Any]) -> None:
    raw = json.dumps(reply).encode()
    replies.write(len(raw).to_bytes(8, "big") + raw)
    replies.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
