"""Render chat templates within limits of memory and time.

A chat template is a program that comes with a model. Its Jinja environment forbids file and
attribute access, but a single expression, ``'a'.center(10**10)``, can exhaust the memory, and no
Python signal handler interrupts it. One child process therefore renders for all tokenizers of this
process. It costs 0.6 s once and about 0.3 ms per prompt.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from assay.data import template_process
from assay.errors import cause
from assay.host.user_code import deadline

# Time limit of one prompt.
TEMPLATE_SECONDS = 10.0
# Time limit of the import of Transformers on a busy machine.
START_SECONDS = 120.0
# Memory limit of a template, beyond the memory of the idle process.
MEMORY_BYTES = 2**30
# Limit of a rendered prompt.
MOST_CHARACTERS = 2**26
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class TemplateFailed(Exception):
    """Raised if a chat template fails or exceeds its time or memory limit. The text is the
    cause."""


def render_chat(
    tokenizer: Any,
    turns: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **switches: Any,
) -> str:
    """Return the text that ``tokenizer.apply_chat_template`` would return, or raise TemplateFailed.

    switches: further variables of the template, such as ``enable_thinking``.
    """
    from transformers import PreTrainedTokenizerBase

    options = {"add_generation_prompt": add_generation_prompt, **switches}
    if tools:
        options["tools"] = tools
    own: Any = type(tokenizer).apply_chat_template
    try:
        if own is not PreTrainedTokenizerBase.apply_chat_template:
            # Tokenizers such as mistral-common's render in Python code, without a Jinja template.
            with deadline(TEMPLATE_SECONDS, "the chat template"):
                return str(tokenizer.apply_chat_template(turns, tokenize=False, **options))
        template = tokenizer.get_chat_template(None, tools or None)
        turns = [{key: turn[key] for key in turn if turn[key] is not None} for turn in turns]
        known = {"conversations": [turns], "chat_template": template}
        return _renderer.render({**tokenizer.special_tokens_map, **options, **known})
    except TemplateFailed:
        raise
    except Exception as error:  # Tokenizers are third-party classes
        raise TemplateFailed(cause(error)) from error


class Renderer:
    """Child process for rendering: started on demand, restarted if it ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, options: Mapping[str, Any]) -> str:
        """Return the rendered text; raises TemplateFailed."""
        # The child's own alarm has twice the time: it matters only if this process has ended.
        request = [2 * TEMPLATE_SECONDS, options]
        raw = json.dumps(request, default=lambda value: f"<{type(value).__name__}>").encode()
        with self._lock:
            process = self._started()
            reply = self._exchange(process, len(raw).to_bytes(8, "big") + raw, TEMPLATE_SECONDS)
        if "text" in reply:
            return reply["text"]
        said = reply["said"].strip().partition("\n")[0]
        if reply["kind"] == "MemoryError":
            said = f"more than {MEMORY_BYTES // 2**20} MiB"
        raise TemplateFailed(f"{reply['kind']}: {said}" if said else reply["kind"])

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner == os.getpid():
            process.kill()
            process.wait()
        else:
            # After a fork the child process belongs to the parent, which waits for it.
            process.returncode = 0
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        # -P keeps the script's folder off the import path.
        command = [sys.executable, "-P", str(Path(template_process.__file__))]
        limits = [str(MEMORY_BYTES), str(MOST_CHARACTERS)]
        self._owner = os.getpid()
        # A new session keeps Ctrl-C away from the child; its parent ends it.
        self._process = subprocess.Popen(
            [*command, *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
        )
        self._exchange(self._process, b"", START_SECONDS)
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], request: bytes, seconds: float
    ) -> dict[str, Any]:
        """Send a request and return the reply; ends the process if there is none."""
        end = time.monotonic() + seconds
        assert process.stdin is not None and process.stdout is not None
        asked, replies = process.stdin.fileno(), process.stdout.fileno()
        try:
            sent = 0
            while sent < len(request):
                _wait(end, seconds, asked, is_write=True)
                sent += os.write(asked, request[sent : sent + select.PIPE_BUF])
            found, size = bytearray(), 8
            while len(found) < size:
                _wait(end, seconds, replies)
                piece = os.read(replies, 2**20)
                if not piece:
                    raise EOFError
                found += piece
                if len(found) >= 8:
                    size = 8 + int.from_bytes(found[:8], "big")
            return json.loads(found[8:])
        except TimeoutError as error:
            self.close()
            raise TemplateFailed(cause(error)) from error
        except (EOFError, BrokenPipeError) as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            code = process.returncode
            self.close()
            raise TemplateFailed(f"its process ended, with exit code {code}") from error
        except BaseException:  # the next request must not read the pending reply
            self.close()
            raise


def _wait(end: float, seconds: float, pipe: int, is_write: bool = False) -> None:
    """Wait until a pipe is ready; raises TimeoutError."""
    # select() accepts no file number above 1023, and a large run has more.
    ready = select.poll()
    ready.register(pipe, select.POLLOUT if is_write else select.POLLIN)
    if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError(f"not done after {seconds:g} s")


_renderer = Renderer()
atexit.register(_renderer.close)


def _forked() -> None:
    """Reset after a fork, because the process, its pipes and possibly the lock belong to the
    parent."""
    global _renderer
    _renderer.close()
    _renderer = Renderer()
    atexit.register(_renderer.close)


os.register_at_fork(after_in_child=_forked)
