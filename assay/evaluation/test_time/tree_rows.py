"""Search trees as JSONL rows: whole completions with their steps, for step labels, value targets
and SFT.

``assay verify`` and data transforms read the completion and the verdict of such a row. An ``[sft]``
stage reads the prompt and the completion of a row. A ``[reward_model]`` stage of kind ``process``
reads the keys ``step_ends`` and ``labels`` of a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from assay.data.rows import problem_row
from assay.evaluation.test_time.methods import SAMPLED, Search
from assay.evaluation.test_time.tree import Node
from assay.reward_models.steps import Places, split_steps
from assay.types import Completion


def tree_rows(method: str, search: Search, answer: Node, step: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each whole completion of a search. step: text that ends a reasoning step.

    The label of a step is the pass rate of all judged completions that contain the step. ``assay
    data label_steps`` computes such labels from random rollouts instead of a search. values,
    visits: mean score and visit count of each step in a Monte-Carlo tree search. scores: value that
    the scorer gives each step.
    """
    below: dict[Node, list[bool]] = defaultdict(list)
    for node in search.found:
        if node.verdict is not None and node.verdict.judged:
            for each in node.lineage():
                below[each].append(node.verdict.correct)
    for number, node in enumerate(search.found):
        row = {**_row(method, search, node, number), "chosen": node is answer}
        # A step whose completions were not judged has no pass rate, so its row has no labels.
        is_tree = method not in SAMPLED and all(below.get(each) for each in node.lineage())
        yield {**row, **(_steps(search, node, below, step) if is_tree else {})}


def _row(method: str, search: Search, node: Node, number: int) -> dict[str, Any]:
    problem, verdict = node.problem, node.verdict
    return {
        **problem_row(problem),
        "id": f"{problem.id}|{method}|{search.budget}|{number}",
        "problem_id": problem.id,
        "think": node.prompt.think.mode,
        "completion": node.text,
        "method": method,
        "budget": search.budget,
        "path": node.path,
        "tokens": len(node.tokens),
        "finish_reason": node.finish_reason,
        **{key: getattr(verdict, key, None) for key in ("status", "reward", "extracted")},
        "score": node.reward,
    }


def _steps(
    search: Search, node: Node, below: Mapping[Node, Sequence[bool]], step: str
) -> dict[str, Any]:
    """Return the step columns of a row, with the completion split as a process reward model splits
    it.
    """
    nodes = [*node.lineage()][::-1]
    completion = Completion.from_text(node.text, think=node.prompt.think)
    problem = replace(node.problem, spec={})
    ends = [
        found.end
        for found in split_steps(problem, completion, Places(completion, None), step, "all")
    ]
    # A process reward model may split the text elsewhere than the search did.
    # A step of the reward model gets the values of the node that contains its end.
    of_ends = [next((one for one in nodes if len(one.text) >= end), node) for end in ends]
    if not ends:
        return {}
    soft = [fmean(below[one]) for one in of_ends]
    columns: dict[str, Any] = {
        "step_ends": [end - 1 for end in ends],
        "labels": soft,
        "hard_labels": [int(label > 0) for label in soft],
        "soft_labels": soft,
        "passed": [sum(below[one]) for one in of_ends],
        "judged": [len(below[one]) for one in of_ends],
        "scores": [one.reward for one in of_ends],
    }
    if search.visits:
        columns["visits"] = [search.visits[one] for one in of_ends]
        columns["values"] = [
            search.values[one] / search.visits[one] if search.visits[one] else None
            for one in of_ends
        ]
    return columns
