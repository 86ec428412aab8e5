"""Chat templates are rendered in a process of their own: same text, bounded memory and time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from processes import gone

from assay.config import DataConfig
from assay.data import template
from assay.data.chat import PromptRenderer
from assay.data.template import TemplateFailed, render_chat
from assay.errors import DataError
from assay.testing import CHAT_TEMPLATE, byte_tokenizer
from assay.types import Problem

TURNS = [
    {"role": "system", "content": "Be brief.  "},
    {"role": "user", "content": "Ünï 数学 \ud800 <b>&amp;</b> \u2028 ' \" \\ {{ x }} {% raw %}"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {"a": [1]}}}]},
    {"role": "tool", "content": "1", "name": "f"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"x": 1.5, "y": None}}}]
HONEST = [
    CHAT_TEMPLATE,
    "{{ bos_token }}{% for m in messages %}{{ m }}{% endfor %}{{ messages | tojson(indent=2) }}",
    "{{ tools }}{{ tools is none }}{{ documents is defined }}{{ enable_thinking is defined }}",
    "{% if enable_thinking %}think{% endif %}{{ add_generation_prompt }}{{ eos_token }}",
    "{%- for m in messages %}\n  {{- m.role | upper ~ m['content'] | trim }}\n{% endfor %}\n",
    "{% set n = namespace(x=1) %}{% generation %}{{ n.x * 'ab' }}{% endgeneration %}",
]
MEMORY = [
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ (range(99999)|list)*9999 }}",
    "{{ '%1000000000d' % 1 }}{{ '%3000000000d' % 1 }}",
    "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{{ {'a': [1]} | tojson(indent=3000000000) }}",
    "{{ 'a' | center(3000000000) }}",
]
TIME = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
]


@pytest.fixture(scope="module")
def renderer() -> Any:
    found = template.Renderer()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch, renderer: template.Renderer) -> None:
    monkeypatch.setattr(template, "MEMORY_BYTES", 2**28)
    monkeypatch.setattr(template, "_renderer", renderer)


def pid() -> int:
    process = template._renderer._process
    assert process is not None
    return process.pid


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("switches", [{}, {"enable_thinking": False, "thinking": False}])
def test_text_is_that_of_apply_chat_template(
    tools: Any, add: bool, switches: dict[str, bool]
) -> None:
    # Transformers 5.17 writes the word None for a message without content; later releases drop the key.
    turns = [{key: turn[key] for key in turn if turn[key] is not None} for turn in TURNS]
    for source in HONEST:
        tokenizer = byte_tokenizer(source)
        theirs = tokenizer.apply_chat_template(
            turns, tokenize=False, tools=tools, add_generation_prompt=add, **switches
        )
        assert render_chat(tokenizer, TURNS, add, tools, **switches) == theirs


def test_named_templates_are_chosen_as_by_the_tokenizer() -> None:
    named: Any = {"default": "plain", "tool_use": "tools"}
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = named
    assert render_chat(tokenizer, TURNS) == "plain"
    assert render_chat(tokenizer, TURNS, tools=TOOLS) == "tools"


def test_a_template_that_takes_all_memory_is_refused() -> None:
    for source in MEMORY:
        with pytest.raises(TemplateFailed, match=r"^(MemoryError: more than 256 MiB|Overflow)"):
            render_chat(byte_tokenizer(source), TURNS)
    first = pid()
    ours = PromptRenderer(byte_tokenizer(MEMORY[1]), DataConfig())
    with pytest.raises(DataError, match=r"p prompt: found messages .* refuses \(MemoryError"):
        ours.render(Problem("p", "x"))
    assert render_chat(byte_tokenizer("{{ 1 }}"), TURNS) == "1" and pid() == first


def test_a_text_that_is_far_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MOST_CHARACTERS", 1000)
    template._renderer.close()
    with pytest.raises(TemplateFailed, match="ValueError: 1,001 characters, of 1,000"):
        render_chat(byte_tokenizer("{{ 'a' * 1001 }}"), TURNS)
    template._renderer.close()


def test_a_template_without_end_is_given_up_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert render_chat(byte_tokenizer("{{ 1 }}"), TURNS) == "1"
    monkeypatch.setattr(template, "TEMPLATE_SECONDS", 0.3)
    for source in TIME:
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(render_chat, byte_tokenizer(source), TURNS)
        with pytest.raises(TemplateFailed, match=r"^TimeoutError: not done after 0\.3 s$"):
            asked.result()
    assert template._renderer._process is None  # it was ended with its template
    monkeypatch.setattr(template, "TEMPLATE_SECONDS", 60.0)
    assert render_chat(byte_tokenizer("{{ 1 }}"), TURNS) == "1"


def test_a_process_that_dies_is_replaced() -> None:
    tokenizer = byte_tokenizer("{{ 1 }}")
    render_chat(tokenizer, TURNS)
    first = pid()
    process = template._renderer._process
    assert process is not None
    process.kill()
    process.wait()
    assert render_chat(tokenizer, TURNS) == "1" and pid() != first


def test_threads_get_their_own_texts() -> None:
    tokenizer = byte_tokenizer("{{ messages[0].content }}")
    texts = [f"{number}" * 9000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        chats = [[{"role": "user", "content": text}] for text in texts]
        assert [*threads.map(partial(render_chat, tokenizer), chats)] == texts


@pytest.mark.parametrize("how", ["end", "hang"])
def test_no_process_is_left(how: str) -> None:
    """Neither at the end of the command nor where it is killed in the middle of a template."""
    program = (
        "import os, sys, threading; from assay.data import template as t\n"
        "chat = {'conversations': [[{'role': 'user'}]], 'chat_template': '1'}\n"
        "t._renderer.render(chat)\n"
        "print(t._renderer._process.pid, flush=True)\n"
        "if sys.argv[1] == 'hang':\n"
        "    t.TEMPLATE_SECONDS = 1.0\n"
        "    threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()\n"
        f"    t._renderer.render({{**chat, 'chat_template': {TIME[0]!r}}})\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert gone([done.stdout.strip()]) and not done.stderr
    assert done.returncode == (0 if how == "end" else -9)
