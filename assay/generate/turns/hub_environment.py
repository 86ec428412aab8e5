"""Environments for the library verifiers 0.1, as on Prime Intellect's hub.

Since version 0.2 of the library verifiers, environments are programs that call a server of the
library. Environments for versions 0.2 and later of the library ``verifiers`` are not supported.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from assay.errors import ConfigError, MissingExtra, cause, message
from assay.generate.turns.environment import Environment
from assay.types import Message, Problem

ROW_KEYS = ("answer", "info", "task", "example_id")
INSTALL = 'verifiers 0.1: install it with  pip install "verifiers<0.2"'
_here = threading.local()


class HubEnvironment(Environment):
    """An environment from an installed package, by its name on the hub.

    arguments: arguments of the package's ``load_environment``. Raises MissingExtra, and ConfigError
    if the environment cannot be loaded or has no turns.
    """

    def __init__(self, name: str, **arguments: Any) -> None:
        try:
            import verifiers  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra(f"environment {name} needs {INSTALL}") from error
        where = f"environment {name}"
        try:
            self.environment: Any = verifiers.load_environment(name, **arguments)
        except Exception as error:  # Third-party package code may raise any exception.
            remedy = f"install it, as with  prime env install {name}"
            raise ConfigError(message(where, cause(error), "one that loads", remedy)) from error
        if not hasattr(self.environment, "env_response"):
            found = f"a {type(self.environment).__name__}"
            accepted = "a MultiTurnEnv of verifiers 0.1"
            raise ConfigError(message(where, found, accepted))
        super().__init__(partial(HubPlay, self.environment))
        self.__doc__ = type(self.environment).__doc__
        self.name = name

    def rows(self, split: str = "train") -> Iterator[dict[str, Any]]:
        """Yield the problems of a split, ``train`` or ``heldout``, as data rows."""
        own = self.environment
        found = own.get_dataset() if split == "train" else own.get_eval_dataset()
        for number, row in enumerate(found):
            kept = {key: row[key] for key in ROW_KEYS if row.get(key) is not None}
            yield {"id": f"{self.name}-{split}-{number}", "prompt": row["prompt"], **kept}


class HubPlay:
    """One rollout of a hub environment; follows the steps of the library's ``rollout``."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.state: Any = None
        self.prompt: list[Any] = []

    def start(self, problem: Problem) -> list[Message]:
        """Set up the environment's state and return the environment's prompt."""
        return _wait(self._start(problem))

    def respond(self, messages: Sequence[Message]) -> Any:
        """Return the environment's next messages; at the end, return the reward, with the
        environment's metrics as components."""
        return _wait(self._respond(str(messages[-1]["content"])))

    async def _start(self, problem: Problem) -> list[Message]:
        from verifiers.types import ClientConfig  # pyright: ignore[reportMissingImports]

        kept = {key: problem.spec[key] for key in ROW_KEYS if key in problem.spec}
        prompt = problem.prompt
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
        row = {"prompt": asked, "example_id": 0, **kept}
        # A placeholder for the library's client, because Assay itself samples the policy.
        nobody = ClientConfig(api_base_url="http://localhost:9/v1")
        self.state = await self.environment.init_state(row, nobody, "policy", None)
        await self.environment.setup_state(self.state)
        self.prompt = [*await self.environment.get_prompt_messages(self.state)]
        return _plain(self.prompt)

    async def _respond(self, said: str) -> Any:
        own, state = self.environment, self.state
        from verifiers.types import AssistantMessage  # pyright: ignore[reportMissingImports]

        reply = [AssistantMessage(content=said)]
        step = {"prompt": self.prompt, "completion": reply, "response": None, "tokens": None}
        rest = {"reward": None, "advantage": None, "is_truncated": False, "extras": {}}
        ids = {"trajectory_id": state["trajectory_id"]}
        await own.add_trajectory_step(state, {**step, **rest, **ids})
        if not await own.is_completed(state):
            known = len(self.prompt) + len(reply)
            prompt = [*await own.get_prompt_messages(state)]
            if not await own.is_completed(state):
                self.prompt = prompt
                return _plain(prompt[known:])
        await own.cleanup(state)
        await own.rubric.score_rollout(state)
        metrics = {name: each for name, each in state["metrics"].items() if name != "score"}
        return {"score": state["reward"], **metrics}


def _plain(messages: Sequence[Any]) -> list[Message]:
    """Convert messages to plain dicts with text contents."""
    found: list[Message] = []
    for one in messages:
        keys = one if isinstance(one, Mapping) else one.model_dump()
        found.append({"role": str(keys["role"]), "content": str(keys["content"] or "")})
    return found


def _wait(step: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in this thread's event loop."""
    # Each thread keeps one event loop, because asyncio objects work only in the loop in which they
    # were created.
    if not hasattr(_here, "loop"):
        _here.loop = asyncio.new_event_loop()
    return _here.loop.run_until_complete(step)
