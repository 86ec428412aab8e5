"""Metrics of a training step, computed from its groups and verdicts. Rates are in 0..1.

The key of a metric begins with one of `TIMING_PREFIXES` if its value depends on the clock, on the
machine, or on a kill during the step. All metrics without such a prefix are equal in a resumed and
in an uninterrupted run.
"""

from __future__ import annotations

import math
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from assay.types import UNREAD_CALL, Completion, Group, Verdict


class StepUpdate(Protocol):
    """Result of a learner's update, which `Run.finish_step` reads.

    metrics: metrics of the update. batch, advantages_T: data for the rollout log; None if the step
    had no rollouts.
    """

    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def policy_version(self) -> int: ...
    @property
    def batch(self) -> Any: ...
    @property
    def advantages_T(self) -> Any: ...


TIMING_PREFIXES = ("time/", "speed/", "memory/", "verify/")
_NO_SPEED = ("checkpoint", "evaluate", "record", "load_policy")


def is_timing(key: str) -> bool:
    """Whether a metric depends on the clock or on the machine."""
    return key.startswith(TIMING_PREFIXES) or key.endswith(("/seconds", "/verifier_seconds"))


def rollout_metrics(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]], parts: Collection[str] = ()
) -> dict[str, float]:
    """Compute the metrics of the rollouts of a step.

    parts: names of the mixture's parts. Each part has additional metrics.
    """
    # A metric without values is omitted, because the value 0 would look like a measurement.
    found: dict[str, list[float]] = defaultdict(list)
    rewarded: list[float] = []
    num_sampled = 0
    for group, judged in zip(groups, verdicts, strict=True):
        for completion, verdict in zip(group.completions, judged, strict=True):
            if verdict.judged and verdict.reward is not None:
                rewarded.append(verdict.reward)
                num_sampled += int(np.count_nonzero(completion.sampled))
                for name, value in verdict.components.items():
                    found[f"reward/{name}"].append(value)
                for tag in group.problem.tags:
                    found[f"family/{tag}"].append(verdict.reward)
    metrics: dict[str, float] = {}
    if rewarded:
        metrics = {"reward/mean": float(np.mean(rewarded)), "reward/std": float(np.std(rewarded))}
        if num_sampled:
            metrics["reward/per_token"] = float(np.sum(rewarded)) / num_sampled
    for prefix in ("reward/", "family/"):
        for name in sorted(name for name in found if name.startswith(prefix)):
            metrics.setdefault(name, float(np.mean(found[name])))
    flat = [verdict for group_verdicts in verdicts for verdict in group_verdicts]
    completions = [completion for group in groups for completion in group.completions]
    metrics |= {**_group_metrics(verdicts), **_verdict_metrics(flat), **_prompt_metrics(groups)}
    metrics |= _diversity_metrics(groups, verdicts)
    if completions:
        metrics |= _length_metrics(completions)
        metrics["text/repeated"] = float(np.mean([repeated(one.tokens) for one in completions]))
        metrics["tokens/prompt"] = float(sum(len(group.prompt.tokens) for group in groups))
    return metrics | _part_metrics(groups, verdicts, parts)


def _part_metrics(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]], parts: Collection[str]
) -> dict[str, float]:
    """Return the metrics of each mixture part, with keys such as ``mixture/NAME.passed``.

    reward: mean reward. passed: share of the judged completions that passed. mixed: share of the
    groups with both passed and failed completions. length: mean number of tokens. truncated: share
    of truncated completions. not_judged: share of the completions that were not judged. A mixture
    part without groups in this step has no metrics.
    """
    found: dict[str, float] = {}
    pairs = list(zip(groups, verdicts, strict=True))
    for name in parts:
        # If several tags of a problem name mixture parts, the first of these tags counts.
        # A resume may change the mixture's parts, so a group may belong to no part.
        own = [
            (group, judged)
            for group, judged in pairs
            if next(filter(parts.__contains__, group.problem.tags), None) == name
        ]
        flat = [verdict for _, judged in own for verdict in judged]
        known = [one for one in flat if one.judged]
        if not own:
            continue
        values = {"not_judged": 1 - len(known) / len(flat)}
        if known:
            values["reward"] = float(np.mean([one.reward or 0.0 for one in known]))
            values["passed"] = sum(one.correct for one in known) / len(known)
            values["mixed"] = _group_metrics([judged for _, judged in own])["group/mixed"]
        lengths = _length_metrics([one for group, _ in own for one in group.completions])
        values["length"], values["truncated"] = lengths["length/mean"], lengths["length/truncated"]
        found |= {f"mixture/{name}.{key}": value for key, value in values.items()}
    return found


def _group_metrics(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """Return the shares of groups by their verdicts, and the mean spread of rewards in a group.

    all_pass, all_fail, mixed: shares of the groups that have a judged completion; the three shares
    add up to 1. shaped_only: share of groups with equal verdicts but different rewards, so that the
    gradient comes from reward shaping alone. all_fail_equal: share of groups whose completions all
    failed with equal rewards. not_judged: share of all groups that have no judged completion.
    often_not_judged: share of all groups in which at least a quarter of the completions, and at
    least two, were not judged. reward_std: standard deviation of the rewards within a group, as the
    mean over groups.
    """
    counts = {"all_pass": 0, "all_fail": 0, "mixed": 0, "shaped_only": 0, "all_fail_equal": 0}
    num_judged, spreads = 0, list[float]()
    for group_verdicts in verdicts:
        judged = [verdict for verdict in group_verdicts if verdict.judged]
        correct = {verdict.correct for verdict in judged}
        if correct:
            num_judged += 1
            kind = "mixed" if len(correct) == 2 else "all_pass" if True in correct else "all_fail"
            counts[kind] += 1
            rewards = [verdict.reward or 0.0 for verdict in judged]
            counts["shaped_only"] += kind != "mixed" and len({*rewards}) > 1
            counts["all_fail_equal"] += kind == "all_fail" and len({*rewards}) == 1
            spreads.append(float(np.std(rewards)))
    metrics = {f"group/{kind}": count / num_judged for kind, count in counts.items() if num_judged}
    if verdicts:
        metrics["group/not_judged"] = 1 - num_judged / len(verdicts)
        often = [
            sum(not one.judged for one in group) >= max(2, len(group) / 4) for group in verdicts
        ]
        metrics["group/often_not_judged"] = sum(often) / len(verdicts)
        metrics["group/size"] = sum(map(len, verdicts)) / len(verdicts)
    if spreads:
        metrics["group/reward_std"] = float(np.mean(spreads))
    return metrics


def _diversity_metrics(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]
) -> dict[str, float]:
    """Return measures of diversity within a group, as means over groups of two or more completions.

    distinct_texts: share of distinct texts. distinct_answers: number of distinct extracted answers
    in a group.
    """
    texts, answers = list[float](), list[int]()
    for group, judged in zip(groups, verdicts, strict=True):
        if len(group.completions) < 2:
            continue
        texts.append(len({one.text for one in group.completions}) / len(group.completions))
        # All answers that passed count as one answer, because the verifier accepts them as equal.
        said = {
            True if one.correct else one.extracted
            for one in judged
            if one.correct or (one.judged and (one.extracted or "").strip())
        }
        answers += [len(said)] if said else []
    found = {"group/distinct_texts": float(np.mean(texts))} if texts else {}
    return found | ({"group/distinct_answers": float(np.mean(answers))} if answers else {})


def _prompt_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of questions whose rendered prompt equals the prompt of another question."""
    # The share is 0 for correct data, and 1 if the chat template omits the question.
    prompts = {group.problem.question: group.prompt.tokens.tobytes() for group in groups}
    counts = Counter(prompts.values())
    shared = sum(counts[one] > 1 for one in prompts.values())
    return {"group/same_prompt": shared / len(prompts)} if len(prompts) > 1 else {}


def repeated(tokens: np.ndarray, n: int = 8, most: int = 2048) -> float:
    """Return the share of n-grams at the end of a completion that occurred earlier in the
    completion.

    most: number of tokens at the end of the completion to examine.
    """
    # A completion that loops does so until the token limit, so the loop shows at the end.
    tokens = tokens[-most:].astype(np.int64)
    num_runs = len(tokens) - n + 1
    if num_runs < 2:
        return 0.0
    codes = np.zeros(num_runs, np.int64)
    # N-grams are compared by their 64-bit hashes.
    # Two different n-grams have equal 64-bit hashes with probability 2^-64.
    for place in range(n):
        codes = codes * np.int64(6364136223846793005) + tokens[place : place + num_runs] + 1
    return 1.0 - len(np.unique(codes)) / num_runs


def _verdict_metrics(flat: Sequence[Verdict]) -> dict[str, float]:
    judged = [verdict for verdict in flat if verdict.judged]
    num_not_judged = len(flat) - len(judged)
    metrics: dict[str, float] = {"verdict/not_judged": float(num_not_judged)}
    if flat:
        metrics["verdict/not_judged_share"] = num_not_judged / len(flat)
    if judged:
        metrics["verdict/passed"] = sum(one.correct for one in judged) / len(judged)
        metrics["verdict/score"] = float(np.mean([one.score or 0.0 for one in judged]))
    reasons = Counter(verdict.reason for verdict in flat if verdict.reason)
    return metrics | {f"verdict/{reason}": float(count) for reason, count in reasons.items()}


def _length_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    lengths_R = np.array([len(completion.tokens) for completion in completions])
    metrics = {
        "length/mean": float(lengths_R.mean()),
        "length/p95": float(np.percentile(lengths_R, 95)),
        "length/truncated": sum(one.truncated for one in completions) / len(completions),
        "tokens/generated": float(lengths_R.sum()),
    }
    if any(completion.think.mode != "off" for completion in completions):
        metrics["length/think"] = float(np.mean([one.num_think_tokens for one in completions]))
    injected_R = np.array([one.num_injected for one in completions])
    if injected_R.any():
        metrics["length/injected"] = float(np.mean(injected_R > 0))
        metrics["tokens/injected"] = float(injected_R.sum())
    if any(completion.said for completion in completions):
        metrics["length/turns"] = float(np.mean([one.num_turns for one in completions]))
        metrics["tool_calls/unread"] = float(sum(map(_num_unread_calls, completions)))
    return metrics


def _num_unread_calls(completion: Completion) -> int:
    """Return the number of tool calls in a completion that the parser could not read."""
    # Calls are counted in the text instead of by the tools, so a replay gives the same number.
    ends = [end for _, end in completion.said]
    starts = [*(start for start, _ in completion.said[1:]), len(completion.text)]
    injected = zip(ends, starts, strict=True) if ends else ()
    return sum(completion.text.count(UNREAD_CALL, *span) for span in injected)


def most_common_reason(verdicts: Sequence[Sequence[Verdict]]) -> str:
    """Return the most common reason why completions were not judged; "" if all were judged."""
    said = Counter(
        one.detail or one.reason or "" for group in verdicts for one in group if one.reason
    )
    return said.most_common(1)[0][0] if said else ""


def timing_metrics(
    seconds: Mapping[str, float], step_seconds: float, elapsed_seconds: float, num_tokens: float
) -> dict[str, float]:
    """Return the seconds and the tokens per second of each phase of a step, and of the whole
    step."""
    phases = {name: value for name, value in seconds.items() if name != "step"}
    metrics = {f"time/{name}": value for name, value in phases.items()}
    metrics["time/step"] = step_seconds
    metrics["time/elapsed"] = elapsed_seconds
    if num_tokens:
        for name, value in {**phases, "step": step_seconds}.items():
            if value > 0 and name not in _NO_SPEED:
                metrics[f"speed/{name}"] = num_tokens / value
    return metrics


def memory_metrics() -> dict[str, float]:
    """Return the peak memory of this process and of its CUDA devices so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss is in KiB on Linux, and in bytes on macOS.
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    metrics = {"memory/peak_mib": peak * bytes_per_unit / 2**20}
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = range(torch.cuda.device_count())
        peaks = [torch.cuda.max_memory_allocated(n) for n in devices]
        metrics["memory/cuda_peak_mib"] = max(peaks) / 2**20
    return metrics


def find_non_finite(metrics: Mapping[str, float]) -> str | None:
    """Return the name of a loss or gradient metric that is NaN or infinite; None if all are
    finite."""
    for name, value in metrics.items():
        if name.startswith(("loss/", "optimizer/")) and not math.isfinite(value):
            return name
    return None
