"""An environment as packages of Prime Intellect's hub have them, for verifiers 0.1."""

from __future__ import annotations

from typing import Any


def load_environment(size: int = 4) -> Any:
    import verifiers as vf  # pyright: ignore[reportMissingImports]
    from datasets import Dataset  # pyright: ignore[reportMissingImports]

    class Digits(vf.MultiTurnEnv):
        """A digit is looked for."""

        async def setup_state(self, state: Any) -> None:
            state["tries"] = 0

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            state["tries"] += 1
            if messages[-1]["content"].strip() == state["answer"]:
                state["found"] = True
                state["final_env_response"] = [{"role": "user", "content": "yes"}]
                return state["final_env_response"]
            return [{"role": "user", "content": f"no, not in {state['info']['place']}"}]

    def found(state: Any) -> float:
        return float(state.get("found", False))

    def num_words(completion: Any) -> float:
        return float(sum(len(str(one["content"]).split()) for one in completion))

    asked = [[{"role": "user", "content": f"digit {n}?"}] for n in range(size)]
    rows = {"prompt": asked, "answer": [str(n) for n in range(size)]}
    rows["info"] = [{"place": f"p{n}"} for n in range(size)]
    rubric = vf.Rubric(funcs=[found, num_words], weights=[1.0, 0.0])
    return Digits(dataset=Dataset.from_dict(rows), rubric=rubric, max_turns=3)


class NoTurns:
    """What no adapter can play."""
