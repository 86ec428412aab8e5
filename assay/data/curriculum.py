"""Curriculum: draw training problems in a configured, seeded order, and track their pass rates."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import CurriculumConfig
from assay.data.outcomes import ALL, BINS, NEVER, Indices, Numbers, Outcomes
from assay.data.row_facts import RowFacts
from assay.errors import ConfigError, RunError, message
from assay.types import Group, Problem, Verdict

STATE_FILE = "curriculum.json"
OUTCOMES_FILE = "problems.npy"
ORDER_FILE = "order.npy"
ORDER_SETTINGS = ("order", "label", "easy_is", "weights")
"""Settings of an epoch's order. A run that resumes with other values begins a new epoch."""
LEAST_CHANCE = 1e-9
"""Minimum sampling weight of an eligible problem. A weight rounded to 0 would exclude the problem
forever."""
UNKNOWN = 1 / 3
"""Prior probability that two completions of a problem get different verdicts."""


class Curriculum:
    """Draws training problems, and tracks how many completions of each problem passed.

    The ``draw`` of a drawn problem counts its earlier draws, so each draw has its own group id. The
    orders ``uniform`` and ``easy_to_hard`` draw every problem once per epoch. All orders except
    ``uniform`` and ``easy_to_hard`` draw problems at random, weighted by the estimated pass rates.
    The next draw depends only on the seed, the number of draws and the observed verdicts. A resumed
    run therefore draws the same problems as an uninterrupted run.

    With oversampling, problems that were drawn but not used keep their draw number and wait for a
    later step. As soon as the waiting problems fill a step, the next step consists of waiting
    problems only and is not oversampled. No problem is lost, and none waits twice, even if its
    completions are long. Steps of waiting problems correspond to the long rounds of RollPacker (Gao
    et al., 2025, arXiv 2509.21009).
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        seed: int,
        settings: CurriculumConfig | None = None,
        facts: RowFacts | None = None,
        most_drawn: int | None = None,
        oversample: int = 0,
        draws_ahead: bool = False,
    ) -> None:
        """Set the state of a new run: the beginning of the first epoch.

        facts: difficulty labels and weights of the rows, if the settings use labels or weights.
        most_drawn: expected number of problems that the whole run draws. oversample: number of
        problems that each step draws beyond those it uses. draws_ahead: whether problems of later
        steps are drawn ahead, so that the saved state contains unobserved problems.
        """
        if not len(problems):
            raise ConfigError(message("data.train", "no problems", "at least one problem"))
        self._problems = problems
        self._seed = seed
        self._settings = settings or CurriculumConfig()
        self._facts = facts or RowFacts()
        weights = self._facts.weights
        if weights is not None and not weights.any():
            accepted = "a weight above 0 for some problem"
            raise ConfigError(message("curriculum.weights", "0 for every problem", accepted))
        self._most_drawn = most_drawn or len(problems)
        self._oversample = oversample
        self._keeps_drawn = bool(oversample) or draws_ahead
        self._walks = self._settings.order in ("uniform", "easy_to_hard")
        self._epoch = 0
        self._position = 0
        self._num_drawn = 0
        self._num_faded = 0
        self.outcomes = Outcomes(self._facts.counts, len(problems))
        self._order = self._new_order()
        self._chances = self._chances_of()
        self._in_hand: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._of_step: set[int] = set()
        self._sizes: list[int] = []

    @property
    def num_problems(self) -> int:
        """Number of problems."""
        return len(self._problems)

    @property
    def epoch(self) -> int:
        """Number of completed epochs, for an order that draws every problem once per epoch."""
        return self._epoch

    def draw(self, num_prompts: int, refill: bool = False) -> list[Problem]:
        """Return the next training problems; a batch may span two epochs.

        refill: whether the drawn problems belong to the same step as the problems of the previous
        call. With a random order, a step repeats a problem only after it has drawn all other
        problems.
        """
        self._forget()
        self._sizes = self._sizes if refill else []
        waited = [] if refill else self._take_waiting(num_prompts)
        more = 0 if refill or waited else self._oversample
        count = num_prompts - len(waited) + more
        if self._walks:
            chosen = self._walk(count)
        else:
            self._of_step = self._of_step if refill else set()
            chosen = self._choose(count)
        return [*waited, *(self._hand_out(index) for index in chosen)]

    def state_copy(self) -> Curriculum:
        """Return a copy of the curriculum's state, which later draws do not change."""
        # The copy shares problems, facts and the epoch's order, which no draw changes in place.
        # Objects that a draw or a verdict changes in place are copied.
        other = copy.copy(self)
        other.outcomes = copy.deepcopy(self.outcomes)
        other._chances = self._chances.copy()
        other._in_hand, other._of_step = dict(self._in_hand), set(self._of_step)
        other._waiting = dict(self._waiting)
        other._sizes = list(self._sizes)
        return other

    def group_sizes(self, problems: Sequence[Problem], usual: int) -> list[int]:
        """Return the group size (number of completions) of each drawn problem.

        usual: configured group size, which a problem without observations gets. The group size is a
        piecewise linear function of the probability that two completions get different verdicts
        (`Outcomes.differences`). The group size is the minimum size at probability 0, the usual
        size at probability 1/3, and the maximum size at probability 1/2. The group size is rounded
        to the usual size times a power of two.
        """
        bounds = self._settings.group_sizes
        if bounds is None:
            return [usual] * len(problems)
        indices = np.array([self._in_hand[one.group_id] for one in problems], np.int64)
        wanted = np.interp(
            self.outcomes.differences(indices), (0.0, UNKNOWN, 0.5), (bounds[0], usual, bounds[1])
        )
        sizes = _sizes(usual, *bounds)
        # The generator runs once per distinct group size, so group sizes take few values.
        # Distances between group sizes are logarithmic, because sizes differ by factors of two.
        chosen = [min(sizes, key=lambda size: abs(math.log(size / one))) for one in wanted]
        self._sizes += chosen
        return chosen

    def observe(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Record how many completions of each drawn problem were judged and how many passed."""
        indices = [self._in_hand.pop(group.id) for group in groups]
        for index, siblings in zip(indices, verdicts, strict=True):
            num_passed = sum(verdict.correct for verdict in siblings)
            num_judged = sum(verdict.judged for verdict in siblings)
            self.outcomes.add(index, num_passed, num_judged)
        self._update_problems(np.array(indices, np.int64))

    def _take_waiting(self, num_prompts: int) -> list[Problem]:
        """Return the waiting problems with their draw numbers, if they fill a step.

        If a resumed run no longer oversamples, the waiting problems are returned at once.
        """
        if self._oversample:
            self._waiting, self._in_hand = self._all_waiting(), {}
            if len(self._waiting) < num_prompts:
                return []
        pairs = [*self._waiting.items()]
        self._in_hand |= dict(pairs[:num_prompts])
        self._waiting = dict(pairs[num_prompts:])
        return [
            dataclasses.replace(self._problems[index], draw=int(name.rpartition("#")[2]))
            for name, index in pairs[:num_prompts]
        ]

    def _all_waiting(self) -> dict[str, int]:
        """Return the problems that were drawn but have no verdicts yet; call only between two
        steps.
        """
        return {**self._waiting, **(self._in_hand if self._keeps_drawn else {})}

    def draw_again(self, name: str) -> Problem | None:
        """Return the waiting problem with a group id, with its original draw number; None if
        unknown.
        """
        if name not in self._waiting:
            return None
        index = self._in_hand[name] = self._waiting.pop(name)
        return dataclasses.replace(self._problems[index], draw=int(name.rpartition("#")[2]))

    def metrics(self) -> dict[str, float]:
        """Return metrics: how many problems were drawn, and a histogram of the observed pass
        rates.
        """
        found = {
            "curriculum/effective_epochs": self._num_drawn / len(self._problems),
            "curriculum/drawn": float(np.mean(self.outcomes.draws > 0)),
        }
        if self._settings.retires:
            is_retired = self.outcomes.returns_at > self._num_drawn
            found["curriculum/retired"] = float(np.mean(is_retired))
        if self._oversample:
            found["oversample/waiting"] = float(len(self._all_waiting()))
        if self._sizes:
            found["curriculum/group_size"] = float(np.mean(self._sizes))
        shares = self.outcomes.histogram()
        for low, high, share in zip(BINS, BINS[1:], shares, strict=False):
            found[f"curriculum/pass_rate_{100 * low:.0f}_{100 * high:.0f}"] = float(share)
        return found

    def _hand_out(self, index: int) -> Problem:
        draw = int(self.outcomes.draws[index])
        problem = dataclasses.replace(self._problems[index], draw=draw)
        self.outcomes.draws[index] += 1
        self._num_drawn += 1
        self._in_hand[problem.group_id] = index
        return problem

    def _walk(self, count: int) -> list[int]:
        """Return the indices of the next problems of an epoch, without retired problems."""
        chosen: list[int] = []
        while len(chosen) < count:
            if self._position >= len(self._order):
                self._begin_epoch()
                continue
            missing = count - len(chosen)
            # Retired problems are skipped in blocks, since an epoch may have millions of problems.
            ahead = self._order[self._position :][: 2 * missing + 1024]
            is_open = self.outcomes.returns_at[ahead] <= self._num_drawn
            found = np.flatnonzero(is_open)[:missing]
            self._position += len(ahead) if len(found) < missing else int(found[-1]) + 1
            chosen += ahead[found].tolist()
        return chosen

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._position = 0
        self._return_retired_if_none_left()
        self._order = self._new_order()

    def _new_order(self) -> Indices:
        """Return the order of the current epoch, as problem indices."""
        # The order is computed from seed and epoch, so a checkpoint need not contain the order.
        generator = np.random.default_rng([self._seed % 2**64, self._epoch])
        order = generator.permutation(len(self._problems))
        if not self._walks:
            return order[:0]
        weights = self._facts.weights
        if weights is not None:
            # Counts are rounded at random: weight 0.5 is one draw per epoch with probability 0.5.
            # A weight is absolute: with weight 2, a problem is always drawn twice per epoch.
            times = np.floor(weights + generator.random(len(weights))).astype(np.int64)
            order = generator.permutation(np.repeat(order, times[order]))
        if self._settings.order == "easy_to_hard":
            # A run shorter than one epoch would only see the easiest problems if all were sorted.
            # Therefore a random subset is taken first, and only the subset is sorted.
            order = order[: self._most_drawn]
            hardness = self._facts.hardness
            if hardness is None:
                hardness = -self.outcomes.pass_rates()
            order = order[np.argsort(hardness[order], kind="stable")]
        return order

    def _choose(self, count: int) -> list[int]:
        """Draw problems at random without replacement, in proportion to their sampling weights."""
        # Each call creates a new random generator, seeded by the number of draws so far.
        # A checkpoint therefore contains no state of a random generator.
        generator = np.random.default_rng([self._seed % 2**64, 1, self._num_drawn])
        chosen: list[int] = []
        self._return_retired_if_none_left()
        chances = self._open_chances()
        while len(chosen) < count:
            sums = np.cumsum(chances)
            if not sums[-1] > 0:
                # A step that has drawn every eligible problem may repeat problems.
                self._of_step = set()
                chances = self._open_chances()
                continue
            # Problems are drawn by inverse-CDF sampling; a problem drawn twice is counted once.
            # The product with the last cumulative sum may round up to this sum.
            # The index would then lie past the end, so the index is limited.
            uniform = generator.random(count - len(chosen)) * sums[-1]
            found = np.searchsorted(sums, uniform, side="right")
            fresh = list(dict.fromkeys(np.minimum(found, len(sums) - 1).tolist()))
            fresh = [index for index in fresh if chances[index] > 0]
            chances[fresh] = 0.0
            self._of_step.update(fresh)
            chosen += fresh
        return chosen

    def _open_chances(self) -> Numbers:
        chances = self._chances * (self.outcomes.returns_at <= self._num_drawn)
        chances[list(self._of_step)] = 0.0
        return chances

    def _chances_of(self, some: Indices | slice = ALL) -> Numbers:
        """Return the sampling weight of each problem; empty for orders without random sampling."""
        if self._walks:
            return np.zeros(0)
        if self._settings.order == "band":
            chances = self.outcomes.chances(some, *self._settings.band)
        else:
            chances = 1.0 - self.outcomes.pass_rates(some)
        weights = self._facts.weights
        times = 1.0 if weights is None else weights[some].astype(np.float64)
        return np.maximum(chances, LEAST_CHANCE) * times

    def _update_problems(self, indices: Indices) -> None:
        """Update the sampling weights and retire problems, according to new observations."""
        if not self._walks:
            self._chances[indices] = self._chances_of(indices)
        settings = self._settings
        if not settings.retires:
            return
        retired = np.zeros(len(indices), np.bool_)
        for low, high in ((settings.retire_above, 1.0), (0.0, settings.retire_below)):
            if low is not None and high is not None:
                retired |= self.outcomes.chances(indices, low, high) >= settings.confidence
        away = settings.return_after
        until = NEVER if away is None else self._num_drawn + round(away * len(self._problems))
        self.outcomes.returns_at[indices[retired]] = until

    def _return_retired_if_none_left(self) -> None:
        # If every problem were retired, no problem would be eligible and a draw would loop forever.
        is_open = self.outcomes.returns_at <= self._num_drawn
        if self._facts.weights is not None:
            is_open &= self._facts.weights > 0
        if not is_open.any():
            self.outcomes.returns_at[:] = 0

    def _forget(self) -> None:
        """Discount the counts of old observations, once each time an epoch's number of problems was
        drawn.
        """
        epochs = self._num_drawn // len(self._problems)
        if epochs > self._num_faded and self._settings.forgetting:
            for _ in range(epochs - self._num_faded):
                self.outcomes.fade(self._settings.forgetting)
            self._chances = self._chances_of()
        self._num_faded = epochs

    def save_state(self, folder: Path | str) -> None:
        """Write the state of the curriculum to files in a folder."""
        folder = Path(folder)
        state = {
            **self._identity(),
            "epoch": self._epoch,
            "position": self._position,
            "num_drawn": self._num_drawn,
            "num_faded": self._num_faded,
            "made_by": self._order_settings(),
        }
        if waiting := self._all_waiting():
            state["waiting"] = waiting
        (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        self.outcomes.save(folder / OUTCOMES_FILE)
        # The order easy_to_hard is saved, because a resumed run cannot recompute the order.
        # The order sorts by pass rates, which have changed since the epoch began.
        if self._settings.order == "easy_to_hard":
            np.save(folder / ORDER_FILE, self._order)

    def load_state(self, folder: Path | str) -> None:
        """Restore a saved state; raises RunError if the state belongs to other problems or another
        seed.

        If the settings of the order differ, the observations are restored and a new epoch begins.
        """
        folder = Path(folder)
        path = folder / STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path}: cannot be read ({error}); choose another checkpoint"
            ) from error
        saved = state if isinstance(state, dict) else {}
        for name, value in self._identity().items():
            if saved.get(name) != value:
                remedy = "resume with the data and the seed that the run began with"
                raise RunError(message(f"{path} {name}", value, str(saved.get(name)), remedy))
        self._epoch, self._position = state["epoch"], state["position"]
        self._num_drawn, self._num_faded = state["num_drawn"], state["num_faded"]
        # Saved outcomes include the counts from the difficulty label at the time of saving.
        # The counts of a changed label therefore apply only to problems without saved outcomes.
        has_label = state["made_by"]["label"] == self._settings.label
        self.outcomes = Outcomes(None if has_label else self._facts.counts, len(self._problems))
        self.outcomes.load(folder / OUTCOMES_FILE)
        self._in_hand, self._of_step, self._waiting = {}, set(), state.get("waiting", {})
        self._chances = self._chances_of()
        if state["made_by"] != self._order_settings():
            self._begin_epoch()
        elif self._settings.order == "easy_to_hard":
            self._order = np.load(folder / ORDER_FILE)
        else:
            self._order = self._new_order()

    def _order_settings(self) -> dict[str, Any]:
        """Return the settings that determine the order of an epoch."""
        return {key: getattr(self._settings, key) for key in ORDER_SETTINGS}

    def _identity(self) -> dict[str, Any]:
        """Return the seed and a digest of the problems, which must equal those of a saved state."""
        return {
            "seed": self._seed,
            "num_problems": len(self._problems),
            "fingerprint": self._fingerprint(),
        }

    def _fingerprint(self) -> str:
        """Return a digest of up to 64 problems, which detects a different set of problems."""
        digest = hashlib.blake2b(digest_size=8)
        num_problems = len(self._problems)
        # The digest covers up to 64 problems, spread evenly over the set.
        # Hashing every question would read every row of a large file.
        for n in range(min(64, num_problems)):
            problem = self._problems[n * num_problems // min(64, num_problems)]
            digest.update(repr((problem.id, problem.question)).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()


def _sizes(usual: int, fewest: int, most: int) -> list[int]:
    """Return the group sizes that problems may get, in ascending order."""
    sizes = {fewest, usual, most}
    for power in range(1, 17):
        sizes |= {size for size in (usual >> power, usual << power) if fewest < size < most}
    return sorted(sizes)
