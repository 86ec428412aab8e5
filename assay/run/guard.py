"""The guard: what stops a run before it wastes more time, or a good policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, cast

from assay.config import GuardConfig
from assay.errors import ConfigError, RunStopped, message
from assay.foreign import import_object
from assay.run.metrics import find_non_finite

if TYPE_CHECKING:
    from assay.run.directory import Run

GuardRule = Callable[["Run"], str | None]


class Guard:
    """Checks every finished step against limits and the user's rules."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self.rules = {name: load_rule(name) for name in config.rules}

    def check(self, run: Run) -> None:
        """Raise RunStopped, with the reason, when the step that just finished must be the last.

        Also where a rule raises: it was asked to guard the run, and cannot.
        """
        breaches = find_breaches(run.metrics, self.config, run.why_not_judged)
        for reason in chain(breaches, self._ask_rules(run)):
            run.event("guard_stop", reason=reason)
            raise RunStopped(
                f"step {run.step}: {reason}; the guard stopped {run.folder}, and all is saved"
            )

    def _ask_rules(self, run: Run) -> Iterator[str]:
        for name, rule in self.rules.items():
            try:
                reason = rule(run)
            except (Exception, SystemExit) as error:  # a user's code
                found = f"{type(error).__name__}: {error}".rstrip(": ")
                run.event("guard_rule_error", rule=name, error=found)
                raise RunStopped(
                    f"step {run.step}: guard.rules: {name} raised {found}; it cannot guard "
                    f"{run.folder}, which stopped, and all is saved; mend it and resume, or resume "
                    "with --set guard.rules=[]"
                ) from error
            if reason:
                yield f"{name}: {reason}"


def find_breaches(
    metrics: Mapping[str, float], config: GuardConfig, why_not_judged: str = ""
) -> Iterator[str]:
    """Yield why a step's metrics must stop the run: the value, the limit, and the setting."""
    if broken := find_non_finite(metrics):
        value, remedy = metrics[broken], "lower optimizer.learning_rate"
        yield f"{broken} is {value}; {remedy}, or look at the last rollouts"
    share = metrics.get("verdict/not_judged_share", 0.0)
    if share > config.max_not_judged:
        yield (
            f"{share:.0%} of the completions were not judged, above guard.max_not_judged "
            f"({config.max_not_judged:.0%}), most often for this reason: "
            f"{why_not_judged or 'none given'}"
        )
    mismatch = metrics.get("mismatch/mean", 0.0)
    if not mismatch <= config.max_mismatch:
        yield (
            f"mismatch/mean is {mismatch:.4g} nats a token, above guard.max_mismatch "
            f"({config.max_mismatch:g}): what samples is not the policy that learns; compare their "
            "weights, tokenizers, temperatures and types"
        )
    if config.max_kl is not None:
        kl = _measured(metrics, "kl/mean", "guard.max_kl", "a reference (algorithm.kl_weight > 0)")
        if kl > config.max_kl:
            yield f"kl/mean is {kl:.4g} nats a token, above guard.max_kl ({config.max_kl:g})"
    if config.min_entropy is not None:
        entropy = _measured(metrics, "entropy/mean", "guard.min_entropy", "an [rl] stage")
        if entropy < config.min_entropy:
            yield (
                f"entropy/mean is {entropy:.4g} nats a token, below guard.min_entropy "
                f"({config.min_entropy:g}): the policy has stopped exploring"
            )


def load_rule(name: str) -> GuardRule:
    """Import ``package.module:function``; raises ConfigError."""
    rule = import_object(name, f"guard.rules {name}", ConfigError)
    if not callable(rule):
        raise ConfigError(message(f"guard.rules {name}", repr(rule), "a function"))
    return cast(GuardRule, rule)


def _measured(metrics: Mapping[str, float], name: str, setting: str, needs: str) -> float:
    if name not in metrics:
        raise ConfigError(f"{setting}: this run does not measure {name}; it needs {needs}")
    return metrics[name]
