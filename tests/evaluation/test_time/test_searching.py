"""Searches over a policy whose every completion is known: what they spend, find and choose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from assay.config import DataConfig, RewardModelConfig, SamplingConfig
from assay.data.traces import read_trace
from assay.evaluation.test_time.choice import choose, elected
from assay.evaluation.test_time.drawing import Drawer
from assay.evaluation.test_time.measure import Searching
from assay.evaluation.test_time.methods import METHODS, SAMPLED, Search, Shape, _leaf
from assay.evaluation.test_time.tree import Draw, Node, StepLimits
from assay.evaluation.test_time.tree_rows import tree_rows
from assay.session.prefixes import PREFIX
from assay.testing import byte_tokenizer
from assay.training.reward_rows import LOADERS, RowReader
from assay.types import Completion, Group, Problem, Prompt, Tokens, Verdict

TARGET = "3;1;4;1"
LONGEST = 24
TREES = [name for name in METHODS if name not in SAMPLED]


def text_of(tokens: Tokens) -> str:
    return bytes(tokens.tolist()).decode()


class Digits:
    """A policy that writes four digits, some of them behind a dash; greedily it writes 3s.

    What it writes depends on what its random numbers would: on the problem's id, the draw and the
    number in the group.
    """

    policy_version = 0
    exact = gives_model_logprobs = False

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.keys: list[tuple[str, int, int]] = []

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
    ) -> list[Group]:
        self.calls.append((len(problems), sampling.max_tokens))
        groups: list[Group] = []
        for problem in problems:
            begun = text_of(problem.spec.get(PREFIX, np.zeros(0, np.int32)))
            siblings: list[Completion] = []
            for sibling in range(group_size):
                self.keys.append((problem.id, problem.draw, sibling))
                random = Random(f"{problem.id} {problem.draw} {sibling}")
                siblings.append(self._complete(begun, random, sampling))
            groups.append(Group(problem, Prompt("?", np.zeros(1, np.int32)), tuple(siblings)))
        return groups

    def _complete(self, begun: str, random: Random, sampling: SamplingConfig) -> Completion:
        digits = [
            "3"
            if sampling.temperature == 0
            else f"{'-' * random.randint(0, 2)}{random.choice('134')}"
            for _ in range(4 - begun.count(";"))
        ]
        text, reason = ";".join(digits), "eos"
        if sampling.stop and ";" in text:
            text, reason = f"{text.partition(';')[0]};", "stop_string"
        written = text.encode() + b"\0" * (reason == "eos")
        tokens = np.frombuffer(written, np.uint8)[: sampling.max_tokens].astype(np.int32)
        if len(tokens) < len(written):
            reason = "length"
        made = Completion.from_text(text, finish_reason=reason)  # type: ignore[arg-type]
        logprobs = np.full(len(tokens), -0.5, np.float32)
        sampled = np.ones(len(tokens), np.bool_)
        return replace(made, tokens=tokens, behavior_logprobs=logprobs, sampled=sampled)

    def sleep(self) -> None:
        """Nothing is held."""

    def load_policy(self, weights: Any) -> None:
        """It does not learn."""


class Judging:
    """Judges by a function of text."""

    def __init__(self, judge: Callable[[Problem, str], Verdict]) -> None:
        self.judge = judge

    @contextmanager
    def judging(self) -> Any:
        yield self

    def add(self, group: Group) -> None:
        """Judged when it is asked for."""

    def verdicts(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        return [
            tuple(self.judge(group.problem, each.text) for each in group.completions)
            for group in groups
        ]

    def compares(self, problem: Problem) -> tuple[str, str]:
        return ("number", "answer")


def is_target(problem: Problem, text: str) -> Verdict:
    return Verdict.of_score(float(text.replace("-", "") == TARGET), "target@1", extracted=text)


def share_right(problem: Problem, text: str) -> Verdict:
    """A perfect process model: the share of the digits that are right so far, less dashes."""
    digits = text.replace("-", "").rstrip(";").split(";")
    right = sum(a == b for a, b in zip(digits, TARGET.split(";"), strict=False))
    return Verdict.of_score(right / len(digits) - 0.001 * text.count("-") * (right > 0), "share@1")


def drawer(**changes: Any) -> Drawer:
    settings: dict[str, Any] = {
        "generator": Digits(),
        "sampling": SamplingConfig(max_tokens=LONGEST),
        "limits": StepLimits(LONGEST, (), text_of),
        "step": ";",
        "block": 4,
        "scorer": Judging(share_right),
    }
    return Drawer(**{**settings, **changes})


def root(name: str = "p0") -> Node:
    return Node(Problem(name, "?", {"answer": TARGET}), Prompt("?", np.zeros(1, np.int32)))


def searched(method: str, budget: int, name: str = "p0", **changes: Any) -> Search:
    search = Search(root(name), budget, LONGEST, Shape())
    drawer(**changes).run([METHODS[method](search)])
    return search


def measured(methods: Sequence[str], budgets: Sequence[int], num: int = 30) -> Searching:
    found = Searching(drawer(), Judging(is_target), methods, budgets, Shape())
    found.run(
        [Problem(f"p{n}", "?", {"answer": TARGET}) for n in range(num)], lambda _: root().prompt
    )
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [LONGEST, 2 * LONGEST, 100, 333])
def test_no_search_spends_more_than_its_budget_and_each_finds_a_completion(
    method: str, budget: int
) -> None:
    for n in range(20):
        search = searched(method, budget, f"p{n}")
        assert search.found and all(node.finished for node in search.found)
        assert len({*search.found}) == len(search.found)
        own = {each for node in search.found for each in node.lineage()}
        assert sum(len(each.own) for each in own) <= search.spent <= budget
        assert budget - search.spent < 2 * LONGEST + LONGEST * (method in ("lookahead", "mcts"))


class AtTheLimit(Digits):
    """Its completions are as long as any may be."""

    def _complete(self, begun: str, random: Random, sampling: SamplingConfig) -> Completion:
        made = super()._complete(begun, random, sampling)
        ends = made.finish_reason == "stop_string" and begun.count(";") < 2
        tokens = made.tokens if ends else np.full(sampling.max_tokens, ord("1"), np.int32)
        reason = made.finish_reason if ends else "length"
        return replace(
            made,
            tokens=tokens,
            text=text_of(tokens),
            finish_reason=reason,
            sampled=np.ones(len(tokens), np.bool_),
            behavior_logprobs=np.full(len(tokens), -0.5, np.float32),
        )


@pytest.mark.parametrize("method", METHODS)
def test_a_search_keeps_back_what_its_first_completion_may_need(method: str) -> None:
    for n, budget in enumerate(range(LONGEST, 4 * LONGEST, 3)):
        search = searched(method, budget, f"p{n}", generator=AtTheLimit())
        assert search.found and search.spent <= budget


def test_plain_sampling_takes_the_longest_row_of_samples_that_fits_for_certain() -> None:
    search, all_of_it = searched("best_of_n", 100), searched("best_of_n", 1000)
    count = len(search.found)
    texts = [node.text for node in all_of_it.found]
    assert [node.text for node in search.found] == texts[:count]
    spent = [sum(len(node.own) for node in search.found[:n]) for n in range(count + 1)]
    assert all(100 - before >= LONGEST for before in spent[:count]) and 100 - spent[-1] < LONGEST


@pytest.mark.parametrize("method", TREES)
def test_a_tree_search_that_is_guided_well_beats_as_many_tokens_of_samples(method: str) -> None:
    found = measured([method, "best_of_n"], [200])
    rows = {row.method: row for row in found.rows()}
    assert rows[method].accuracy > rows["best_of_n"].accuracy + 0.2  # type: ignore[operator]
    assert rows["oracle"].accuracy == rows["best_of_n"].accuracy
    assert rows["one_sample"].accuracy < 0.1 and rows["greedy"].accuracy == 0.0  # type: ignore[operator]
    gains = [
        right - rows["one_sample"].by_problem[id] for id, right in rows[method].by_problem.items()
    ]
    assert rows[method].gain == pytest.approx(np.mean(gains))
    assert rows[method].gain_stderr == pytest.approx(np.std(gains, ddof=1) / len(gains) ** 0.5)


def test_a_search_is_the_same_whatever_is_searched_beside_it() -> None:
    alone = {name: searched(name, 150, "p7") for name in METHODS}
    many = drawer()
    beside = {
        (name, n): Search(root(f"p{n}"), budget, LONGEST, Shape())
        for name in METHODS
        for n, budget in ((3, 300), (7, 150), (9, 60))
    }
    roots = {n: root(f"p{n}") for n in (3, 7, 9)}
    for (_, n), one in beside.items():
        one.root = roots[n]  # one tree for all methods and budgets
    many.run([METHODS[name](one) for (name, _), one in beside.items()])
    for name in METHODS:
        texts = [node.text for node in alone[name].found]
        assert [node.text for node in beside[name, 7].found] == texts
        assert beside[name, 7].spent == alone[name].spent


def test_what_is_drawn_has_a_key_of_its_own_and_is_drawn_once() -> None:
    found, generator = drawer(), Digits()
    found = replace(found, generator=generator)
    base = root()
    found.run([METHODS[name](Search(base, 300, LONGEST, Shape())) for name in METHODS])
    steps = [node for node in walk(base) if not node.finished]
    ids = [node.problem_to_draw.id for node in (base, *steps)]
    assert len(ids) == len({*ids})
    kinds = len(base.drawn)  # a whole completion begins as the step with its number
    assert max(generator.keys.count(key) for key in {*generator.keys}) <= kinds
    whole = [node.text for node in base.drawn["whole"]]
    first = [node.text for node in base.drawn["step"]]
    assert all(a.startswith(b) for a, b in zip(whole, first, strict=False))


def walk(node: Node) -> list[Node]:
    children = [child for each in node.drawn.values() for child in each]
    return [*children, *(below for child in children for below in walk(child))]


def test_open_nodes_of_all_problems_go_in_one_call() -> None:
    generator = Digits()
    searches = [Search(root(f"p{n}"), 100, LONGEST, Shape()) for n in range(10)]
    drawer(generator=generator).run([METHODS["beam"](one) for one in searches])
    assert generator.calls[0] == (10, LONGEST)  # a block each of four first steps
    steps = max(len(node.path.split(".")) for one in searches for node in one.found)
    rounds = max(len({node.path.split(".")[0] for node in one.found}) for one in searches)
    assert len(generator.calls) <= steps * (rounds + 4)


def test_a_step_that_runs_into_the_limit_of_its_completion_is_cut_there() -> None:
    base = root()
    limits = StepLimits(10, (), text_of)
    for text, ends in (("123456;", "stop_string"), ("12;", "stop_string")):
        made = Completion.from_text(text, finish_reason=ends)  # type: ignore[arg-type]
        tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        base = base.add(
            "step", replace(made, tokens=tokens, behavior_logprobs=tokens * 0.0), limits
        )
        assert not base.finished or base.text == "123456;12;"
    assert base.finish_reason == "length" and len(base.tokens) == 10
    cut = root().add("step", replace(made, tokens=np.arange(12, dtype=np.int32)), limits)
    assert cut.finish_reason == "length" and len(cut.tokens) == 10


def test_a_stop_string_of_the_sampling_ends_a_completion_and_not_only_a_step() -> None:
    limits = StepLimits(10, ("!",), text_of)
    made = Completion.from_text("so!", finish_reason="stop_string")
    made = replace(made, tokens=np.frombuffer(b"so!", np.uint8).astype(np.int32))
    assert root().add("step", made, limits).finish_reason == "stop_string"
    step = replace(made, tokens=np.frombuffer(b"so;", np.uint8).astype(np.int32))
    assert root().add("step", step, limits).finish_reason is None
    assert root().add("whole", step, limits).finish_reason == "stop_string"


def test_a_stop_string_over_the_border_of_two_steps_ends_a_completion() -> None:
    limits = StepLimits(20, (";Q",), text_of)
    made = Completion.from_text("so;", finish_reason="stop_string")
    first, second = (np.frombuffer(text, np.uint8).astype(np.int32) for text in (b"so;", b"Q 1;"))
    node = root().add("step", replace(made, tokens=first, behavior_logprobs=first * 0.0), limits)
    assert node.finish_reason is None
    node = node.add("step", replace(made, tokens=second, behavior_logprobs=second * 0.0), limits)
    assert node.finish_reason == "stop_string"


@pytest.mark.parametrize("shift", [0.0, -5000.0])  # e**-5000 is 0 as a float
def test_mcts_goes_where_the_mean_value_and_the_prior_promise_most(shift: float) -> None:
    base = root()
    below = [
        Node(base.problem, base.prompt, str(n), base, logprob=lp + shift)
        for n, lp in enumerate((-0.1, -3.0))
    ]
    search = Search(base, 100, LONGEST, Shape(exploration=0.0))
    search.visits.update({base: 5, below[0]: 4, below[1]: 1})
    search.values.update({below[0]: 2.0, below[1]: 0.6})
    assert _leaf(search, {base: below}, set()) is below[1]  # 0.6 over 0.5
    search.shape = Shape(exploration=1.0)  # the prior of the first is 0.95
    assert _leaf(search, {base: below}, set()) is below[0]
    assert _leaf(search, {base: below}, {below[0]}) is below[1]
    assert _leaf(search, {base: below}, {*below}) is base


def test_values_of_mcts_are_the_mean_scores_below() -> None:
    search = searched("mcts", 300)
    visited = [node for node in search.visits if node is not search.root]
    assert search.visits[search.root] == len(visited)
    for node in visited:
        below = [one for one in visited if node in [*one.lineage()]]
        assert search.visits[node] == len(below)
        assert search.values[node] == pytest.approx(sum(one.score or 0.0 for one in below))


@pytest.mark.parametrize("method", TREES)
def test_nodes_that_the_scorer_does_not_judge_do_not_stop_a_search(method: str) -> None:
    unsaid = Verdict.not_judged("error", "none@1")
    search = searched(method, 200, scorer=Judging(lambda *_: unsaid))
    assert search.found and choose(method, [search], Judging(is_target)) == [search.found[0]]


def same_number(problem: Problem, text: str) -> Verdict:
    said = {"0.5": "1/2", "2/4": "1/2"}
    right = said.get(text, text) == said.get(problem.spec["answer"], problem.spec["answer"])
    return Verdict.of_score(float(right), "number@1", extracted=text or None)


def voters(texts: Sequence[str], scores: Sequence[float], answer: str = "7") -> Search:
    base = replace(root(), problem=Problem("p", "?", {"answer": answer}))
    search = Search(base, 100, LONGEST, Shape())
    for text, score in zip(texts, scores, strict=True):
        node = Node(base.problem, base.prompt, parent=base, text=text, finish_reason="eos")
        node.score, node.reward, node.verdict = score, score, same_number(base.problem, text)
        search.found.append(node)
    return search


def test_answers_that_the_verifier_holds_equal_vote_together() -> None:
    judge = Judging(same_number)
    split = voters(["3", "3", "1/2", "0.5", "2/4"], [0.9, 0.1, 0.2, 0.2, 0.2])
    lone = voters(["8", "1/2", "0.5", "7"], [0.99, 0.3, 0.3, 0.8])
    (answer,) = choose("self_consistency", [split], judge)
    assert answer is split.found[2]
    assert [one.text for one in choose("weighted_vote", [split, lone], judge)] == ["3", "8"]
    assert [one.text for one in choose("best_of_n", [split, lone], judge)] == ["3", "8"]
    heavier = voters(["8", "1/2", "0.5", "7"], [0.5, 0.3, 0.3, 0.4])
    assert [one.text for one in choose("weighted_vote", [heavier], judge)] == ["1/2"]
    nothing = voters(["", ""], [0.1, 0.2])
    assert choose("self_consistency", [nothing], judge) == [nothing.found[0]]


def test_an_even_vote_goes_to_the_answer_that_was_drawn_first() -> None:
    verdicts = [Verdict.of_score(0.0, "n@1", extracted=text) for text in ("b", "a", "a", "b")]
    assert elected(verdicts, [1.0] * 4, {}) == 0
    assert elected(verdicts[::-1][1:], [1.0] * 3, {}) == 0
    assert elected(verdicts, [0.1, 0.3, 0.0, 0.1], {}) == 1


def several(method: str) -> Iterator[Search]:
    yield from (searched(method, 300, f"p{n}") for n in range(30))


@pytest.mark.parametrize("method", ["beam", "mcts"])
def test_trees_are_rows_for_process_models_and_traces(method: str, tmp_path: Any) -> None:
    search = next(
        one
        for one in several(method)
        if any(is_target(n.problem, n.text).correct for n in one.found)
    )
    for node in search.found:
        node.verdict = is_target(node.problem, node.text)
    answer = max(search.found, key=lambda node: node.reward or 0)
    rows = list(tree_rows(method, search, answer, ";"))
    assert [row["completion"] for row in rows] == [node.text for node in search.found]
    assert sum(row["chosen"] for row in rows) == 1 and {row["status"] for row in rows} == {
        "passed",
        "failed",
    }
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        steps = row["completion"].split(";")
        for number in range(len(steps)):
            begun = ";".join(steps[: number + 1])
            assert row["completion"][: row["step_ends"][number] + 1] == begun
        path = row["path"].split(".")
        ending = [one for one in rows if one["path"].split(".")[:2] == path[:2]]
        if len(path) > 1:
            share = sum(one["status"] == "passed" for one in ending) / len(ending)
            assert row["labels"][1] == pytest.approx(share)
        assert row["labels"][-1] == float(row["status"] == "passed")
        assert ("visits" in row) == (method == "mcts")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = RewardModelConfig(kind="process", rows=(str(file),), split=";")
    groups, complaints = RowReader(settings, DataConfig(), byte_tokenizer(), 256).read_all(
        LOADERS["process"](settings.rows)
    )
    assert not complaints and len(groups) == len(rows)
    assert groups[0].texts[0].labels.tolist() == pytest.approx(rows[0]["labels"])
    assert read_trace(rows[0], "rows:1", "r").completion == rows[0]["completion"]


def test_whole_samples_have_no_steps_in_their_rows() -> None:
    search = searched("best_of_n", 100)
    rows = list(tree_rows("best_of_n", search, search.found[0], ";"))
    assert rows and not any("labels" in row for row in rows)


def test_a_row_says_what_was_not_judged() -> None:
    unsaid = Verdict.not_judged("timeout", "none@1")
    found = Searching(drawer(), Judging(lambda *_: unsaid), ["best_of_n"], [100], Shape())
    found.run([Problem("p0", "?")], lambda _: root().prompt)
    assert {row.accuracy for row in found.rows()} == {None}
    assert {row.num_not_judged for row in found.rows()} == {1}
    assert "not judged" in found.rows()[0].cells


def test_a_greedy_draw_is_one() -> None:
    base, generator = root(), Digits()
    drawer(generator=generator).draw([Draw(base, "greedy", 0, 1), Draw(base, "greedy_step", 0, 1)])
    assert [node.text for node in base.drawn["greedy"]] == ["3;3;3;3"]
    assert [node.text for node in base.drawn["greedy_step"]] == ["3;"]
    assert len(generator.keys) == 2
