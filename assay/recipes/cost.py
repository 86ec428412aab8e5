"""Estimate the cost of a recipe before it starts: completions, minutes and memory per stage."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.curation.asking import AskingSettings
from assay.curation.output import StageSettings, is_run
from assay.data.sources import open_source
from assay.recipes.file import RecipeStage, references

LONGEST = 256
"""Maximum length of a completion in tokens, if neither the stage nor its model's run sets one."""


@dataclass(frozen=True)
class Cost:
    """Estimated cost of a stage. Unknown or inapplicable fields are None.

    at_most: whether the fields are upper bounds, because the stage's input rows do not exist yet.
    tokens: maximum number of tokens of all completions together. minutes: training time without
    evaluations.
    """

    at_most: bool = False
    completions: int | None = None
    tokens: int | None = None
    steps: int | None = None
    minutes: float | None = None
    memory_mib: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the stage trains for an unknown duration."""
        return self.memory_mib is not None and self.minutes is None

    def __str__(self) -> str:
        bound = "at most " if self.at_most else ""
        parts: list[str] = []
        if self.completions is not None:
            words = (
                f"{bound}{self.completions:,} completions of at most {self.tokens or 0:,} tokens"
            )
            parts.append(words)
        if self.steps is not None:
            parts.append(f"{bound}{self.steps:,} steps")
        if self.minutes is not None:
            parts.append(f"{bound}{self.minutes:.1f} minutes without evaluations")
        if self.memory_mib is not None:
            parts.append(f"{self.memory_mib:,.0f} MiB")
        return ", ".join(parts)


@dataclass(frozen=True)
class Total:
    """Sum of the costs of all stages. not_known: names of stages without a cost estimate."""

    cost: Cost
    not_known: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the total as a dict of JSON values."""
        return {"stage": None, "cost": asdict(self.cost), "not_known": [*self.not_known]}

    def __str__(self) -> str:
        lines = ["##### in all #####", f"cost: {self.cost or 'unknown'}"]
        if self.not_known:
            lines.append(f"not known, and not in the sum: {', '.join(self.not_known)}")
        return "\n".join(lines)


def total_of(costs: Mapping[str, Cost | None]) -> Total:
    """Return the sum of the stages' costs, with the maximum of their memory."""
    # Stages run one after the other, so the memory of several stages is not added.
    known = [one for one in costs.values() if one is not None]

    def summed(key: str) -> Any:
        values = [value for one in known if (value := getattr(one, key)) is not None]
        return sum(values) if values else None

    at_most = any(one.at_most for one in known)
    memory = max((one.memory_mib for one in known if one.memory_mib is not None), default=None)
    parts = [summed(key) for key in ("completions", "tokens", "steps", "minutes")]
    completions, tokens, steps, minutes = parts
    total = Cost(at_most, completions, tokens, steps, minutes, memory)
    not_known = [name for name, one in costs.items() if one is None or one.is_open]
    return Total(total, not_known)


class RowCounts:
    """Numbers of rows of data transforms: exact for existing rows, else upper bounds.

    made: names of stages whose output exists. outputs: output of each stage.
    """

    def __init__(
        self,
        stages: Mapping[str, RecipeStage],
        settings: Mapping[str, StageSettings],
        outputs: Mapping[str, str],
        made: Collection[str],
    ) -> None:
        self._stages, self._settings = stages, settings
        self._outputs, self._made = outputs, made
        self._known: dict[str, int | None] = {}

    def of(self, sources: Sequence[str]) -> int | None:
        """Return an upper bound on the number of rows in sources such as ``@NAME``, or None."""
        counts = [self._of_one(source) for source in sources]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def cost_of(self, stage: RecipeStage) -> Cost | None:
        """Return the number of completions that a data transform samples; None if unknown."""
        settings = self._settings[stage.name]
        if not isinstance(settings, AskingSettings) or not settings.model:
            return Cost()
        completions = settings.num_completions(self.of(stage.tree["inputs"]))
        if completions is None:
            return None
        longest = settings.max_tokens or self._longest_of(stage.tree["model"])
        return Cost(self.is_open(stage), completions, completions * longest)

    def is_open(self, stage: RecipeStage) -> bool:
        """Whether some of a stage's input rows do not exist yet."""
        taught = stage.tree.get("sft") or stage.tree.get("distill") or {}
        sources = stage.tree.get("inputs") or taught.get("traces", ())
        return any(name not in self._made for _, name, _ in references(sources))

    def _of_one(self, source: str) -> int | None:
        found = [*references(source)]
        if not found:
            return None if is_run(source) else _count(source)
        text, name, _ = found[0]
        if not text.startswith("@") or name not in self._settings:
            # The rows are rollouts of a training stage, whose number is unknown before the run.
            return None
        if name not in self._known:
            if name in self._made:
                self._known[name] = _count(self._outputs[name])
            else:
                read = self.of(self._stages[name].tree["inputs"])
                self._known[name] = self._settings[name].most_written(read)
        return self._known[name]

    def _longest_of(self, model: str) -> int:
        """Return the maximum completion length of a stage's model, in tokens."""
        # The model's run does not exist yet, so the stage's configuration gives the length.
        for _, name, _ in references(model):
            return self._stages[name].tree.get("sampling", {}).get("max_tokens", LONGEST)
        return LONGEST


def _count(source: str) -> int:
    return sum(1 for _ in open_source(source).scan())


def roots_of(name: str, stages: Mapping[str, RecipeStage]) -> Iterator[str]:
    """Yield the sources outside the recipe from which a data transform's rows derive."""
    for source in stages[name].tree.get("inputs", ()):
        inner = [found for _, found, _ in references(source)]
        for one in inner:
            yield from roots_of(one, stages)
        if not inner:
            yield source
