"""Reward functions from Assay's verifiers for other trainers, such as TRL and verl."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from assay.data.rows import read_problem
from assay.errors import DataError, VerifierError, message
from assay.session.judging import Named, expression_of
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, ThinkMode, Verdict
from assay.verify.expression import parse_expression
from assay.verify.service import Options, VerifierService

GIVE_UP_AFTER = 64
"""Failed completions, before any is judged, after which a verifier is considered broken."""
OF_TRL = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
"""Keyword arguments that TRL passes in addition to the columns of the data set."""
SHOWN_COLUMNS = 12
# Types of values in rows; columns with other types, such as images, are ignored.
_PLAIN = (str, int, float, list, tuple, Mapping)


class RewardFunction:
    """A reward function for other trainers, which the function `reward` creates.

    Calls have the signature of TRL's reward functions: prompts, completions and columns. `verl` has
    verl's signature. `judge` returns full verdicts. Instances can be used by several threads, and
    can be pickled. Verifiers run in worker processes, which end when the instance is
    garbage-collected.
    """

    def __init__(
        self,
        expression: str,
        columns: Mapping[str, str],
        think: ThinkMode,
        not_judged: float,
        settings: Mapping[str, Any],
    ) -> None:
        self._arguments = (expression, columns, think, not_judged, settings)
        self.expression = expression
        self.not_judged = not_judged
        self._columns, self._think = dict(columns), ThinkFormat(think)
        # TRL logs rewards under the `__name__` of the function, so each instance needs a name.
        self.__name__ = "+".join(term.name for term in parse_expression(expression))
        self._warned = False
        self._any_row_was_good = False
        self._service = VerifierService(expression, give_up_after=GIVE_UP_AFTER, **settings)
        self._service.check([expression])
        compares = self._service.compares(Problem("problem", ""))
        self._gold = compares[1] if compares else "answer"

    def __reduce__(self) -> tuple[Any, ...]:
        return RewardFunction, self._arguments

    def __repr__(self) -> str:
        return f"assay.reward({self.expression!r})"

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Return the reward of each completion for TRL; None for a completion that was not judged.

        prompts, completions: texts, or lists of chat messages. columns: columns of the data set
        with one value per completion, which become keys of the completion's row.
        """
        size = len(completions)
        trl_columns = {key: columns.pop(key, None) for key in OF_TRL}
        rows = [
            {key: values[n] for key, values in columns.items() if _is_column(values, size)}
            for n in range(size)
        ]
        verdicts = self.judge(prompts, completions, rows)
        if (log_metric := trl_columns["log_metric"]) is not None:
            for name, value in _metrics(verdicts).items():
                log_metric(f"{self.__name__}/{name}", value)
        return [verdict.reward for verdict in verdicts]

    def verl(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, float]:
        """Return ``score``, ``acc`` and ``judged`` of one completion, for verl's reward managers.

        ground_truth: expected answer, or a dict with several keys of the row. extra_info: further
        keys of the row.

        verl requires a number: if ``judged`` is 0.0, ``score`` is the configured value
        ``not_judged``.
        """
        gold = ground_truth if isinstance(ground_truth, Mapping) else {"ground_truth": ground_truth}
        columns = {"ground_truth": self._gold, **self._columns}
        row = {**(extra_info or {}), **gold}
        row = {key: value for key, value in row.items() if key not in ("prompt", "id", "tags")}
        row = {**row, **{new: row.pop(old) for old, new in columns.items() if old in row}}
        # verl passes no prompt to a reward function, so the problem has a placeholder as prompt.
        (verdict,) = self.judge(["(not given)"], [solution_str], [row])
        reward = self.not_judged if verdict.reward is None else verdict.reward
        found = {"score": reward, "acc": verdict.correct, "judged": verdict.judged}
        return {name: float(value) for name, value in found.items()}

    def judge(
        self, prompts: Sequence[Any], completions: Sequence[Any], rows: Sequence[Mapping[str, Any]]
    ) -> list[Verdict]:
        """Return the verdicts of completions, each of which has a prompt and the keys of its row.

        Adjacent completions with equal prompts and rows form a group, for verifiers that compare
        completions. A completion whose row lacks a required key gets the verdict *not judged*. If
        no row so far had all required keys, the first DataError or VerifierError is raised.
        """
        problems = [self._problem(*each) for each in zip(prompts, rows, strict=True)]
        good = [one for one in problems if isinstance(one, Problem)]
        bad = [one for one in problems if not isinstance(one, Problem)]
        self._any_row_was_good |= bool(good)
        # A wrong column name fails on every row; without an error, no row would get a reward.
        if bad and not self._any_row_was_good:
            raise bad[0]
        if bad and not self._warned:
            self._warned = True
            words = f"{self!r}: a row is not judged, like similar rows: {bad[0]}"
            warnings.warn(words, stacklevel=3)
        verdicts: list[Verdict] = []
        pairs = zip(problems, completions, strict=True)
        groups: list[Group] = []
        for problem, members in groupby(pairs, key=lambda pair: pair[0]):
            texts = [text_of(completion) for _, completion in members]
            if isinstance(problem, Problem):
                groups.append(self._group(problem, texts, len(groups)))
        judged = iter([one for group in self._service.judge(groups) for one in group])
        for problem in problems:
            if isinstance(problem, Problem):
                verdicts.append(next(judged))
            else:
                why = {"detail": str(problem)}
                verdicts.append(Verdict.not_judged("error", self.expression, **why))
        return verdicts

    def _problem(self, prompt: Any, row: Mapping[str, Any]) -> Problem | DataError | VerifierError:
        """Return the problem of a row, or an error if the row is invalid."""
        plain = {key: value for key, value in row.items() if isinstance(value, _PLAIN)}
        keys = {self._columns.get(key, key): value for key, value in plain.items()}
        if isinstance(answer := keys.get("answer"), str):
            keys["answer"] = _final_answer(answer)
        where = "a row of the data set"
        try:
            problem = read_problem({**keys, "prompt": _plain_prompt(prompt)}, where, "row")
            self._service.check_problem(problem)
        except (DataError, VerifierError) as error:
            names = ", ".join(list(map(str, row))[:SHOWN_COLUMNS]) or "none"
            remedy = f'its columns: {names}; rename one with columns={{"theirs": "{self._gold}"}}'
            return type(error)(f"{error}; {remedy}")
        return problem

    def _group(self, problem: Problem, texts: Sequence[str], number: int) -> Group:
        completions = tuple(
            Completion.from_text(text, f"{number}/{n}", self._think) for n, text in enumerate(texts)
        )
        prompt = Prompt(problem.question, completions[0].tokens[:0], self._think)
        return Group(problem, prompt, completions)


def reward(
    verifier: Named,
    *,
    columns: Mapping[str, str] | None = None,
    think: ThinkMode = "free",
    not_judged: float = 0.0,
    num_workers: int | None = None,
    deadline: float = 5.0,
    options: Options | None = None,
    allow: Sequence[str] = (),
) -> RewardFunction:
    """Return a reward function for the trainers of TRL or verl, or for your own trainer.

        from trl import GRPOTrainer
        GRPOTrainer(model, reward_funcs=assay.reward("math*1.0 + think_format*0.1"), ...)

        compute_score = assay.reward("math").verl                 # verl: custom_reward_function

        is_right = assay.reward("math")
        is_right(["3+5="], ["\\\\boxed{8}"], answer=["8"])        # [1.0]

    verifier: a name, a sum, ``package.module:function`` or a function. columns: new names for
    columns of the data set, such as ``{"solution": "answer"}``. think: ``opened`` if the prompt
    already ends inside of a think block. not_judged: score for verl if a completion is not judged;
    TRL gets None and ignores the completion.

    The other parameters of this function are those of `judge`. See docs/use_in_your_trainer.md.
    Raises VerifierError for an invalid verifier.
    """
    settings = {"num_workers": num_workers, "deadline": deadline}
    settings |= {"options": options, "allow": tuple(allow)}
    return RewardFunction(expression_of(verifier), columns or {}, think, not_judged, settings)


def text_of(completion: Any) -> str:
    """Return the text of a completion: the string itself, or the assistant messages joined.

    Reasoning that a chat parser has separated is put into a think block again. Raises DataError.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        completion = [completion]
    if not isinstance(completion, Sequence):
        accepted = "text, or chat messages"
        raise DataError(message("completion", type(completion).__name__, accepted))
    turns = [cast("Mapping[str, Any]", one) for one in completion]
    return "\n\n".join(map(_turn_text, (one for one in turns if one.get("role") == "assistant")))


def _turn_text(turn: Mapping[str, Any]) -> str:
    text = _content_text(turn.get("content"))
    thought = turn.get("reasoning_content") or turn.get("thinking")
    return f"<think>{thought}</think>{text}" if isinstance(thought, str) else text


def _content_text(content: Any) -> str:
    """Return the text in the content of a message, which may be a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def _plain_prompt(prompt: Any) -> Any:
    """Return a prompt in the format of rows: a text, or text messages that end with a user turn."""
    if isinstance(prompt, str):
        return prompt or "(not given)"
    turns = [{"role": one["role"], "content": _content_text(one.get("content"))} for one in prompt]
    while len(turns) > 1 and turns[-1]["role"] == "assistant":
        # An assistant turn at the end is a prefill, which the prompt of a row must not have.
        turns.pop()
    return turns


def _final_answer(answer: str) -> str:
    """Return the text after ``####`` in the last line (GSM8K format), or else the whole answer."""
    last = answer.rstrip().rpartition("\n")[2]
    return last.removeprefix("####").replace(",", "").strip() if last[:4] == "####" else answer


def _is_column(values: Any, size: int) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) == size


def _metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the share of unjudged completions, and the mean of each component of the reward."""
    found = {"not_judged": sum(not one.judged for one in verdicts) / max(1, len(verdicts))}
    for name in {name for one in verdicts for name in one.components}:
        values = [one.components[name] for one in verdicts if name in one.components]
        found[name] = sum(values) / len(values)
    return found
