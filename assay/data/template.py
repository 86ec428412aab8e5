"""Render chat templates within limits of memory and time, in a child process.

A chat template is a program in the Jinja language that comes with a model. The Jinja environment of
chat templates forbids access to files and private attributes. Yet a single expression such as
``'a'.center(10**10)`` can exhaust the memory, and no Python signal handler can interrupt the
expression. One child process renders the chat templates of all tokenizers in this process. The
child process takes 0.6 s to start and about 0.3 ms per prompt.
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

# Time limit for rendering one prompt with its chat template, in seconds.
TEMPLATE_SECONDS = 10.0
# Time limit for the start of the child process, which imports Transformers on a busy machine.
START_SECONDS = 120.0
# Memory limit for rendering, in addition to the memory of the idle child process.
MEMORY_BYTES = 2**30
# Maximum number of characters of a rendered prompt.
MOST_CHARACTERS = 2**26
# The child process needs one thread, but NumPy's BLAS would start a thread per core on import.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class TemplateFailed(Exception):
    """Raised if a chat template fails, or exceeds its time or memory limit."""


def render_chat(
    tokenizer: Any,
    turns: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **switches: Any,
) -> str:
    """Return the text that ``tokenizer.apply_chat_template`` would return, or raise TemplateFailed.

    switches: further variables for the chat template, such as ``enable_thinking``.
    """
    from transformers import PreTrainedTokenizerBase

    options = {"add_generation_prompt": add_generation_prompt, **switches}
    if tools:
        options["tools"] = tools
    own: Any = type(tokenizer).apply_chat_template
    try:
        if own is not PreTrainedTokenizerBase.apply_chat_template:
            # Some tokenizers (mistral-common's) render in Python code, without a Jinja template.
            with deadline(TEMPLATE_SECONDS, "the chat template"):
                return str(tokenizer.apply_chat_template(turns, tokenize=False, **options))
        template = tokenizer.get_chat_template(None, tools or None)
        # Chat templates test whether a key is defined, so null keys of hub data sets are removed.
        turns = [{key: turn[key] for key in turn if turn[key] is not None} for turn in turns]
        known = {"conversations": [turns], "chat_template": template}
        return _renderer.render({**tokenizer.special_tokens_map, **options, **known})
    except TemplateFailed:
        raise
    except Exception as error:  # Third-party tokenizers may raise any exception.
        raise TemplateFailed(cause(error)) from error


class Renderer:
    """Starts the rendering child process on demand, and restarts it if it has ended.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, options: Mapping[str, Any]) -> str:
        """Return the text that the child process rendered; raises TemplateFailed on an error."""
        # The child process itself sets an alarm at twice the time limit.
        # The alarm ends the child process if its parent died and therefore cannot end it.
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
        """End the child process."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._owner == os.getpid():
            process.kill()
            process.wait()
        else:
            # After a fork, the rendering process is still a child of the original process.
            # Only the process that started the rendering process may end it.
            # The return code is set here, so that Popen does not wait for the rendering process.
            process.returncode = 0
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        # The option -P keeps the folder of the script off the import path.
        # On the import path, modules of assay/data could shadow top-level modules of equal names.
        command = [sys.executable, "-P", str(Path(template_process.__file__))]
        limits = [str(MEMORY_BYTES), str(MOST_CHARACTERS)]
        self._owner = os.getpid()
        # In a new session, the child process does not receive Ctrl-C. This process ends the child.
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
        """Send a rendering request and return the reply; end the child process if no reply arrives
        in time.
        """
        end = time.monotonic() + seconds
        assert process.stdin is not None and process.stdout is not None
        asked, replies = process.stdin.fileno(), process.stdout.fileno()
        try:
            sent = 0
            while sent < len(request):
                _wait(end, seconds, asked, is_write=True)
                # poll() promises space for PIPE_BUF bytes only, so a longer write could block.
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
        except BaseException:  # After Ctrl-C, the next request must not read this request's reply.
            self.close()
            raise


def _wait(end: float, seconds: float, pipe: int, is_write: bool = False) -> None:
    """Wait until a pipe is ready; raises TimeoutError if the time ``end`` is reached."""
    # select() fails for file descriptors above 1023, which a large run reaches.
    ready = select.poll()
    ready.register(pipe, select.POLLOUT if is_write else select.POLLIN)
    if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError(f"not done after {seconds:g} s")


_renderer = Renderer()
atexit.register(_renderer.close)


def _forked() -> None:
    """Replace the renderer after a fork, in the child."""
    # The rendering process and its pipes belong to the parent process.
    # The lock is replaced, because another thread may have held it during the fork.
    global _renderer
    _renderer.close()
    _renderer = Renderer()
    atexit.register(_renderer.close)


os.register_at_fork(after_in_child=_forked)
