"""Which features of an RL run go together: what each sets, and what becomes of each pair.

`test_combinations` checks every cell by a run, and ``tools/combinations_reference.py`` writes the
table into docs/combinations.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

WORKS = "works"


@dataclass(frozen=True)
class Feature:
    """What turns a feature on, and the words for it.

    sets: sections of a configuration. slow: its runs need Ray, or take seconds.
    """

    words: str
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slow: bool = False


CALL, RESULT = "<{tool}>{input}</{tool}>", "={result};"
STOPS = [chr(one) for one in range(33, 70)]  # so that lengths differ
FEATURES: Mapping[str, Feature] = {
    "vllm": Feature('`scale.generator = "vllm"`', {"scale": {"generator": "vllm"}}, slow=True),
    "actors": Feature("`scale.rollout_actors`", {"scale": {"rollout_actors": 1}}, slow=True),
    "ahead": Feature(
        "`scale.steps_ahead = 2`", {"scale": {"rollout_actors": 1, "steps_ahead": 2}}, slow=True
    ),
    "ranks": Feature("`scale.learner_ranks`", {"scale": {"learner_ranks": 2}}, slow=True),
    "tools": Feature(
        "tools (`tools.names`)",
        {"tools": {"names": ["calculator"], "call": CALL, "result": RESULT, "introduction": ""}},
    ),
    "environment": Feature(
        "an environment (`tools.environment`)",
        {"tools": {"environment": "seam_worlds:Echo", "result": "{result}\n"}},
    ),
    "budget": Feature(
        "a thinking budget (`sampling.think_budget`)",
        {
            "data": {"think": "opened", "think_open": "{", "think_close": "}"},
            "sampling": {"think_budget": 12, "think_stop_text": "!{close}"},
        },
    ),
    "min_think": Feature(
        "a minimum length of thinking (`sampling.min_think`)",
        {
            "data": {"think": "opened", "think_open": "{", "think_close": "}"},
            "sampling": {"min_think": 8, "think_more_text": "~", "max_think_more": 2},
        },
    ),
    "growing": Feature("growing groups (`rl.max_group_size`)", {"rl": {"max_group_size": 6}}),
    "oversample": Feature("`rl.oversample`", {"rl": {"oversample": 1}}),
    "mixture": Feature("a mixture (`[data.mixture]`)"),
    "lora": Feature("LoRA (`model.lora`)", {"model": {"lora": {"rank": 2}}}),
    "teacher": Feature(
        "a teacher (`on_policy_distillation`)", {"algorithm": {"name": "on_policy_distillation"}}
    ),
    "turns": Feature(
        'credit by turns (`algorithm.credit = "turns"`)',
        {"algorithm": {"name": "rloo", "credit": "turns"}},
    ),
    "siblings": Feature("a reward that compares siblings (`kimi_length`)"),
    "remote": Feature("a remote verifier (`remote:NAME`)"),
    "audit": Feature(
        "a second verifier (`[audit]`)",
        {"audit": {"second": "train_worlds:few_marks", "accepted": 1.0, "rejected": 0.5}},
        slow=True,
    ),
    "resume": Feature("`assay train --resume RUN`"),
    "replay": Feature("`assay run replay RUN --step 2`"),
}

REFUSED: Mapping[frozenset[str], str] = {
    frozenset(("ahead", "oversample")): "accepted: 0 with scale.steps_ahead",
    frozenset(("ahead", "teacher")): "has no importance weights for tokens of older policies",
    frozenset(("tools", "environment")): "accepted: names or environment, not both",
    frozenset(("min_think", "oversample")): "accepted: 0 with sampling.min_think",
    frozenset(("mixture", "oversample")): "accepted: 0 with [data.mixture]",
    frozenset(("remote", "siblings")): "a verifier that judges each completion by itself",
}
"""What is refused before a model is loaded, with words of the one line that says so."""
SENSELESS: Mapping[frozenset[str], str] = {
    frozenset(("vllm", "actors")): "an actor needs real vLLM (tests/training/test_vllm.py)",
    frozenset(("actors", "ahead")): "`scale.steps_ahead` always uses rollout actors",
    frozenset(("teacher", "turns")): "the features need different values of `algorithm.name`",
}
"""What is not a pair, and why."""
CELLS = [
    (one, other)
    for one, other in combinations_with_replacement(FEATURES, 2)
    if frozenset((one, other)) not in SENSELESS
]


def is_slow(*names: str) -> bool:
    """Whether a cell's run needs Ray, or takes seconds; what is refused never runs."""
    return frozenset(names) not in REFUSED and any(FEATURES[name].slow for name in names)


def settings(*names: str) -> dict[str, dict[str, Any]]:
    """Return the sections that turn features on, and a reward that suits them."""
    found: dict[str, dict[str, Any]] = {"sampling": {"max_tokens": 24}, "data": {}}
    for name in names:
        for section, values in FEATURES[name].sets.items():
            found[section] = {**found.get(section, {}), **values}
    if "turns" in names and "tools" not in names:
        found["tools"] = {**FEATURES["environment"].sets["tools"]}
    if "environment" in found.get("tools", {}):
        found["sampling"]["stop"] = [*"aeiou "]
        verifier = "seam_worlds:Lost" if "growing" in names else "seam_worlds:Echo"
        found["tools"]["environment"] = verifier
        found["sampling"]["max_tokens"] = 32
    else:
        name = "wrong_in_many_ways" if "growing" in names else "even_text"
        verifier = f"train_worlds:{name}"
    if "tools" not in names and ("oversample" in names or "siblings" in names):
        found["sampling"].setdefault("stop", STOPS)
    if "tools" in names:
        found["sampling"] = {**found["sampling"], "max_tokens": 48}
    if "remote" in names:
        verifier = "remote:exact + remote:repetition*0.5"
    if "siblings" in names:
        verifier += " + remote:kimi_length" if "remote" in names else " + kimi_length"
    found["data"]["verifier"] = verifier
    return found
