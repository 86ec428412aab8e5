"""The tools of a run: open them as configured, describe them in the prompt, run their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from assay.config import ToolsConfig
from assay.errors import FAILURES, ConfigError, VerifierError, cause, did_you_mean, message
from assay.generate.turns.calculator import CALCULATOR
from assay.generate.turns.call_format import (
    FENCED,
    Call,
    CallFormat,
    InText,
    OfTemplate,
    closing_of,
)
from assay.generate.turns.corpus import search_tool
from assay.generate.turns.environment import Environment
from assay.generate.turns.interpreter import check_sandbox, interpreter
from assay.generate.turns.reply_controller import ChatFormatter, ReplyController, next_thread
from assay.generate.turns.tool import FREE, RunCall, Tool, ToolError, TurnEnvironment
from assay.generate.turns.user_functions import tool_named
from assay.host.user_code import import_object
from assay.types import UNREAD_CALL, Message, Problem, Prompt, ThinkFormat
from assay.verify.sandbox.packages import (
    ACCEPTED,
    Packages,
    are_packages,
    check_packages,
    find_packages,
    not_installed,
)

INTRODUCTION = """You can use tools. To use one, write a call in exactly this form:

{form}

Then stop: its result is put behind it, and you go on. These are the tools:

{tools}"""


class UnreadCall(Exception):
    """A tool call that no parser can read.

    The policy sees the parser's message, and metrics count the invalid call.
    """


@dataclass(frozen=True)
class Toolbox:
    """The tools or the environment of a run.

    make_environment: creates the environment of one completion. Tools are an environment too.
    schemas: tool schemas for the chat template; empty if the template shows no tools. introduction:
    text that describes the tools if the chat template has no place for schemas. begins: replaces a
    problem's prompt with the environment's first messages.
    """

    formatter: ChatFormatter
    make_environment: Callable[[Problem, Prompt], TurnEnvironment]
    schemas: Sequence[dict[str, Any]] = ()
    introduction: str = ""
    begins: Callable[[Problem], Problem] | None = None

    def make_controller(self, problem: Problem, prompt: Prompt) -> ReplyController:
        """Create the turn controller of one completion."""
        return ReplyController(self.formatter, self.make_environment(problem, prompt), prompt.think)


@dataclass(eq=False)
class ToolEnvironment:
    """Runs the calls of one completion. The policy sees every error of a tool as text."""

    tools: Mapping[str, Tool]
    settings: ToolsConfig
    format: CallFormat
    think: ThinkFormat = FREE
    num_calls: int = 0
    opened: dict[str, RunCall] = field(default_factory=dict[str, RunCall])

    def is_addressed(self, said: str, ended: bool) -> bool:
        """Return whether an assistant turn ends with tool calls."""
        return bool(self.format.found(said, ended, self.think))

    def respond(self, said: str) -> Sequence[Message]:
        """Return the results of a turn's calls, one message per call.

        Calls of user functions run concurrently, other calls in order.
        """
        calls = self.format.found(said, True, self.think)
        named = [_named(call, number) for number, call in enumerate(calls, self.num_calls + 1)]
        begun = [self._begin(call, alone=len(calls) == 1) for call in calls]
        return [
            {"role": "tool", "content": self._result(run), **names}
            for run, names in zip(begun, named, strict=True)
        ]

    def _begin(self, call: Call, alone: bool) -> Callable[[], str]:
        """Start a tool call; return a function that waits for the call and returns its result or
        raises its error."""
        self.num_calls += 1
        try:
            run = self._checked(call)
        except FAILURES as error:
            # Opening a user's tool may raise any exception.
            return partial(_raise, error)
        if isinstance(call, str) or alone or not self.tools[call.name].stateless:
            return run
        return next_thread("calls").submit(run).result

    def _result(self, run: Callable[[], str]) -> str:
        try:
            text = run()
        except ToolError as error:
            text = f"error: {error}"
        except UnreadCall as error:
            text = f"{UNREAD_CALL}{error}"
        except FAILURES as error:
            # A user's tool may raise any exception.
            text = f"error: {cause(error)}"
        return cut(text, self.settings.max_output)

    def _checked(self, call: Call) -> Callable[[], str]:
        """Validate a tool call and return a function that runs the call. Raises ToolError."""
        if self.num_calls > self.settings.max_calls:
            raise ToolError(f"no calls are left, after {self.settings.max_calls}; give the answer")
        if isinstance(call, str):
            raise UnreadCall(call)
        tool = self.tools.get(call.name)
        if tool is None:
            raise ToolError(f"there is no tool {call.name:.40}; the tools: {', '.join(self.tools)}")
        call = call.typed(tool.parameters.get("properties", {}))
        _check(tool, call.arguments)
        if tool.name not in self.opened:
            self.opened[tool.name] = tool.open()
        return partial(self.opened[tool.name], call.arguments)


def _named(call: Call, number: int) -> Message:
    """Return the tool name and call id that some chat templates write with a call's result."""
    name, id = ("", "") if isinstance(call, str) else (call.name, call.id)
    return {"name": name or "unknown", "tool_call_id": id or f"call{number:05}"}


def _raise(error: BaseException) -> str:
    raise error


def _check(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raise ToolError for missing or unknown arguments."""
    properties = tool.parameters.get("properties", {})
    for name in tool.parameters.get("required", ()):
        if name not in arguments:
            raise ToolError(f"{tool.name} needs {name}; it takes {', '.join(properties)}")
    for name in arguments:
        if name not in properties:
            takes = ", ".join(properties) or "nothing"
            raise ToolError(f"{tool.name} has no {name:.40}; it takes {takes}")


def cut(text: str, most: int) -> str:
    """Shorten a text to about ``most`` characters and state in the middle how many were removed."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[{left_out} characters left out]\n{text[len(text) - tail :]}"


def open_tools(settings: ToolsConfig, tokenizer: Any, in_chat: bool) -> Toolbox | None:
    """Open the configured tools or environment; None if none is configured.

    in_chat: whether the chat template renders prompts. Raises ConfigError, and SandboxUnavailable
    if ``python`` is configured without an available sandbox.
    """
    if settings.environment is not None:
        return _open_environment(settings, tokenizer, in_chat)
    if not settings.names:
        return None
    tools: dict[str, Tool] = {}
    for name in settings.names:
        tool = _open(name, settings)
        if tool.name in tools:
            found = f"two tools with the name {tool.name}"
            raise ConfigError(message("tools.names", found, "a different name for each"))
        tools[tool.name] = tool
    of_template = OfTemplate.of(tokenizer, [*tools]) if in_chat and settings.call is None else None
    pattern = settings.call or FENCED
    # The pattern {call} has no marks around the call, so a whole turn is one call.
    is_whole_turn = pattern.strip() == "{call}"
    whole = OfTemplate("", "", tuple(tools)) if is_whole_turn else None
    calls = of_template or whole or InText(pattern, tools)

    def make_environment(problem: Problem, prompt: Prompt) -> ToolEnvironment:
        return ToolEnvironment(tools, settings, calls, prompt.think)

    if of_template is not None:
        return Toolbox(
            ChatFormatter(tokenizer), make_environment, [tool.schema for tool in tools.values()]
        )
    introduction = INTRODUCTION if settings.introduction is None else settings.introduction
    shown = introduction.replace("{form}", _form(pattern)).replace("{tools}", _described(tools))
    result = None if is_whole_turn and in_chat else settings.result
    formatter = ChatFormatter(tokenizer, result, "" if is_whole_turn else closing_of(pattern))
    return Toolbox(formatter, make_environment, introduction=shown)


def _open_environment(settings: ToolsConfig, tokenizer: Any, in_chat: bool) -> Toolbox:
    where = "tools.environment"
    found = import_object(str(settings.environment), where, ConfigError)
    if not isinstance(found, Environment):
        accepted = "an Environment (docs/environments.md)"
        raise ConfigError(message(where, f"a {type(found).__name__}", accepted))

    def make_environment(problem: Problem, prompt: Prompt) -> TurnEnvironment:
        return found.open_conversation(problem, prompt.think)

    formatter = ChatFormatter(tokenizer) if in_chat else ChatFormatter(tokenizer, settings.result)
    return Toolbox(formatter, make_environment, begins=found.begun)


def _open(name: str, settings: ToolsConfig) -> Tool:
    if name == "python":
        packages = _packages(settings)
        check_sandbox(settings.unsafe_no_sandbox, packages)
        return interpreter(settings.seconds, settings.unsafe_no_sandbox, packages)
    if name == "calculator":
        return CALCULATOR
    if name == "search":
        if not settings.corpus:
            raise ConfigError(
                message("tools.corpus", "nothing", 'documents, for the tool "search"')
            )
        return search_tool(settings.corpus, settings.num_passages)
    if ":" not in name:
        known = ("python", "calculator", "search")
        accepted = f"{', '.join(known)}, or your own function as package.module:function"
        raise ConfigError(message("tools.names", repr(name), accepted, did_you_mean(name, known)))
    return tool_named(name, "tools.names", settings.seconds)


def _packages(settings: ToolsConfig) -> Packages:
    """Return the packages of ``python``. Raises ConfigError if a package is missing."""
    names = tuple(settings.packages or ())
    if not are_packages(names):
        raise ConfigError(message("tools.packages", list(names), ACCEPTED))
    try:
        check_packages(names, "tools.packages")
    except VerifierError as error:
        raise ConfigError(str(error)) from None
    found = find_packages(names)
    if found.missing:
        raise ConfigError(f"tools.packages: {not_installed(found.missing)}")
    return found


def _form(pattern: str) -> str:
    call = '{"name": "NAME", "arguments": {...}}'
    return pattern.replace("{call}", call).replace("{tool}", "NAME").replace("{input}", "INPUT")


def _described(tools: Mapping[str, Tool]) -> str:
    return "\n".join(map(_line, tools.values()))


def _line(tool: Tool) -> str:
    properties = tool.parameters.get("properties", {})
    names = [f"{name} ({one.get('type', 'any')})" for name, one in properties.items()]
    return f"- {tool.name}: {tool.description} Input: {', '.join(names) or 'none'}."
