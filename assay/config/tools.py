"""Settings of tools: which there are, how they are called, and what a call may cost."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from assay.config.section import Natural, Positive, Section, Text, found_words


class ToolsConfig(Section):
    """Tools that the policy may call inside a completion (docs/tools.md). What a tool says is
    given: it is context, and nothing is learned from it."""

    names: tuple[Text, ...] = ()
    """``python``, ``calculator``, ``search``, or functions of yours as ``package.module:function``.
    Empty: no tools."""
    environment: Text | None = None
    """An environment of yours, as ``package.module:object`` (docs/environments.md): it answers the
    policy in place of tools, whenever the policy ends its turn. None: nothing but tools answers."""
    corpus: tuple[Text, ...] = ()
    """What ``search`` looks through: files of plain text, or rows with the key ``text``."""
    num_passages: Natural = 3
    """Most passages that ``search`` tells of."""
    max_calls: Natural = 8
    """Most calls that a completion may make. A further call is told that none is left."""
    seconds: Positive = 5.0
    """Most seconds that a call may take. ``python`` counts the seconds of computing, so that a busy
    machine changes nothing."""
    max_output: Natural = 2000
    """Most characters of a call's result that the policy is told. Of a longer one the middle is
    left out."""
    call: Text | None = None
    """How a call is written. ``{tool}`` stands for the tool's name and ``{input}`` for its one
    argument (or a JSON object of several); or ``{call}`` stands for both, as a JSON object with
    ``name`` and ``arguments``. The call is answered where this text ends. ``{call}`` alone: a turn
    that is a call, in any known form, is answered at its end. None: as the chat
    template writes calls, answered at the end of the turn. If it writes none: a fenced block."""
    result: Text = "\n```output\n{result}\n```\n"
    """How a result is written, where the chat template does not say it."""
    introduction: str | None = None
    """What the prompt says of the tools, where the chat template does not; ``{tools}`` is replaced
    by the list of them. Empty: nothing. None: a text of a few lines."""
    unsafe_no_sandbox: bool = False
    """Run ``python`` without isolation where this machine has none."""

    @model_validator(mode="after")
    def _one_answers(self) -> ToolsConfig:
        if self.names and self.environment is not None:
            raise ValueError(found_words(self.environment, "names or environment, not both"))
        return self

    @field_validator("call")
    @classmethod
    def _is_call(cls, text: str | None) -> str | None:
        if text is None:
            return text
        tool, *counts = [text.count(part) for part in ("{tool}", "{input}", "{call}")]
        fits = counts == ([1, 0] if tool else [0, 1])
        is_open = text.endswith(("{input}", "{call}", "{tool}")) and text.strip() != "{call}"
        if not fits or is_open:
            accepted = "text with {tool} and {input}, or with {call}, that something follows; "
            accepted += "or {call} alone"
            raise ValueError(found_words(text, accepted))
        return text

    @field_validator("result")
    @classmethod
    def _holds_result(cls, text: str) -> str:
        if text.count("{result}") != 1:
            raise ValueError(found_words(text, "text that holds {result} once"))
        return text
