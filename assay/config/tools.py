"""The section ``[tools]``: names of tools, format of calls and limits."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from assay.config.section import Natural, Positive, Section, Text, found_words


class ToolsConfig(Section):
    """Tools that the policy can call inside a completion (docs/tools.md).

    The results of tool calls are injected into the completion, and their tokens are masked from the
    loss.
    """

    names: tuple[Text, ...] = ()
    """Names of the tools: ``python``, ``calculator``, ``search``, or user functions as
    ``package.module:function``. Empty: no tools."""
    environment: Text | None = None
    """A user environment as ``package.module:object`` (docs/environments.md). The environment
    replaces tools and replies whenever the policy ends its turn. None: no environment."""
    corpus: tuple[Text, ...] = ()
    """Documents for ``search``: files of plain text, or sources of rows with the key ``text``."""
    num_passages: Natural = 3
    """Maximum number of passages in a result of ``search``."""
    max_calls: Natural = 8
    """Maximum number of calls per completion. The result of a further call is a message that no
    calls are left."""
    seconds: Positive = 5.0
    """Maximum seconds per call. For ``python``, the limit applies to CPU time, so that a busy
    machine changes no result."""
    # A tool's long output is cut in the middle, because a traceback ends with the error message.
    max_output: Natural = 2000
    """Maximum number of characters of a call's result. The middle of a longer result is removed."""
    call: Text | None = None
    """Format of a call. ``{tool}`` stands for the tool's name and ``{input}`` for its only argument
    (or a JSON object of several arguments). Alternatively, ``{call}`` stands for a JSON object with
    ``name`` and ``arguments``. The call is executed when the policy has written this text. If the
    format is ``{call}`` alone, a turn that consists of a call in any known format is executed at
    the end of the turn. None: the format of the chat template, executed at the end of the turn, or
    a fenced block if the template has no format."""
    result: Text = "\n```output\n{result}\n```\n"
    """Format of a result, if the chat template has no format."""
    introduction: str | None = None
    """Description of the tools in the prompt, if the chat template describes no tools. The list of
    tools replaces ``{tools}``. Empty: no description. None: a default text of a few lines."""
    packages: tuple[Text, ...] | None = None
    """Installed packages that programs of ``python`` may import, such as ``numpy``, with their
    dependencies. None: the packages of ``verification.options.code.packages``."""
    unsafe_no_sandbox: bool = False
    """Run ``python`` without isolation if this machine does not support isolation."""

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
        # A tool-call format needs text after the argument, which marks the end of the argument.
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
