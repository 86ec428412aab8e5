"""The metric that a sweep compares: the accepted names, and the value of a finished run."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import RunError, did_you_mean, message
from assay.host.records import read_step_rows
from assay.run.evaluations import Row, kind_of, of_deciding_kind, of_loss, on_canaries
from assay.validation import toml_words

ACCURACY = "accuracy"
LAST = 10
"""Number of steps at the end over which a metric of the steps is averaged."""

# The name of the metric is checked before the first run, because a run may take hours.
# docs/metrics.md explains each metric; tests/sweep compares the page with this table.
METRICS: Mapping[str, str] = {
    "advantage": "mean std",
    "critic": "clip_fraction explained_variance grad_norm loss return_mean value_mean",
    "curriculum": "drawn effective_epochs group_size pass_rate_0_20 pass_rate_80_100 retired",
    "entropy": "mean",
    "eval": "bits_per_byte chosen_longer chosen_shorter length_correlation majority mean_tokens nll"
    " num_not_judged pass_at_1 perplexity truncated verifier_seconds",
    "group": "all_fail_equal all_fail all_pass distinct_answers distinct_texts mixed not_judged"
    " often_not_judged reward_std same_prompt shaped_only size",
    "kl": "answer mean old think unaligned weight",
    "length": "injected mean p95 think truncated turns",
    "loss": "clip_fraction divergence entropy kl nll policy preference token_share total",
    "memory": "cuda_peak_mib peak_mib",
    "mismatch": "mean p99",
    "optimizer": "grad_norm learning_rate skipped steps",
    "oversample": "groups tokens waiting",
    "penalty": "weight",
    "policy": "age_failed age_max age_mean age_passed spanning",
    "preference": "accuracy beta both_fall change_chosen_token change_chosen change_rejected_token"
    " change_rejected completions kl length_chosen length_rejected logprob_chosen logprob_rejected"
    " margin pairs reward_chosen reward_rejected",
    "queue": "finished groups",
    "ratio": "max mean min",
    "sampling": "temperature",
    "scores": "accuracy chosen margin rejected",
    "text": "repeated",
    "tokens": "generated injected prompt trained",
    "tool_calls": "unread",
    "trust_region": "backtracks cg_residual improvement kl",
    "update": "stopped_at",
    "verifier": "disagreement false_accept false_reject num_problems num_second"
    " num_second_not_judged second_since",
    "verdict": "error not_judged_share not_judged passed score timeout unavailable",
}
OPEN = ("reward", "family", "mixture", "time", "speed", "verify", "eval/pass_at_")
"""Beginnings of names that continue with a name of the configuration, a phase or a number."""


def check_metric(name: str) -> str:
    """Return the reason why a name cannot be the metric of a sweep; "" for a valid metric."""
    part, _, rest = name.partition("/")
    names = [f"{group}/{one}" for group, ones in METRICS.items() for one in ones.split()]
    is_open = rest and (part in OPEN or name.startswith(OPEN[-1]))
    if name == ACCURACY or name in names or is_open:
        return ""
    near = did_you_mean(name, [ACCURACY, *names])
    accepted = "accuracy, or a metric of docs/metrics.md"
    return message("", toml_words(name), accepted, near).removeprefix(": ")


def is_of_evaluations(name: str) -> bool:
    """Whether a metric is measured on held-out problems."""
    return name == ACCURACY or name.startswith("eval/")


def value_of(run: Path, name: str) -> float:
    """Return a finished run's metric. Raises RunError if the run has no value of the metric."""
    if is_of_evaluations(name):
        rows = read_step_rows(run / "evaluations.jsonl")
        last = _last_evaluation(rows)
        key = "eval/pass_at_1" if name == ACCURACY else name
        if isinstance(value := last.get(key), int | float):
            return float(value)
        known = _numbers(last)
        if name == ACCURACY and of_loss(rows):
            known = ["eval/nll", "eval/perplexity", "eval/bits_per_byte"]
    else:
        rows = read_step_rows(run / "metrics.jsonl")[-LAST:]
        values = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
        if values:
            return statistics.fmean(values)
        known = sorted({key for row in rows for key in _numbers(row)})
    accepted = "a number that the run recorded"
    remedy = did_you_mean(name, known) or f"it has {', '.join(known) or 'none'}"
    raise RunError(message(f"{run} metric", toml_words(name), accepted, remedy))


def num_not_judged(run: Path, name: str) -> int:
    """Return how many completions have no verdict in the evaluation that gives the metric."""
    if not is_of_evaluations(name):
        return 0
    last = _last_evaluation(read_step_rows(run / "evaluations.jsonl"))
    return int(last.get("eval/num_not_judged") or 0)


def _last_evaluation(rows: Sequence[Row]) -> Row:
    """Return the last held-out evaluation of a run; empty if the last step was not evaluated."""
    # An evaluation without verdicts has no accuracy, so the run has no value.
    # An earlier evaluation is no substitute, because all arms have the same accuracy at step 0.
    rows = [row for row in rows if not on_canaries(row)]
    deciding = of_deciding_kind(rows) or rows
    if not deciding:
        return {}
    alike = [row for row in rows if kind_of(row) == kind_of(deciding[0])]
    return alike[-1] if alike and alike[-1]["step"] == rows[-1]["step"] else {}


def _numbers(row: Mapping[str, Any]) -> Collection[str]:
    return [key for key, value in row.items() if isinstance(value, int | float) and "/" in key]
