"""Data transform ``label_difficulty``: measure a model's pass rate on each problem."""

from __future__ import annotations

from assay.curation.asking import AskingSettings
from assay.curation.base import DataStage
from assay.curation.output import Output, Row
from assay.run.intervals import share_interval


class DifficultySettings(AskingSettings):
    """Label each problem with a model's pass rate over several samples.

    Each problem's row gets the key ``difficulty``. In the value of ``difficulty``, ``passed`` and
    ``judged`` are numbers of samples. ``low`` and ``high`` are the ends of the pass rate's 95 %
    confidence interval (Wilson).
    """

    also_without_thinking: bool = False
    """Sample each problem equally often in no-think mode too, and add ``without_thinking`` to the
    label. A problem that is solved without thinking was guessed or needs no reasoning."""

    def num_completions(self, num_read: int | None) -> int | None:
        """Return the number of completions in all think modes, for a number of input rows."""
        found = super().num_completions(num_read)
        return found if found is None else found * (1 + self.also_without_thinking)


def label_difficulty(settings: DifficultySettings, out: Output) -> None:
    """Write each problem with its difficulty label.

    The filter ``not_judged`` removes problems without any judged sample.
    """
    # The sampler imports PyTorch, which takes seconds; settings and help do not need the sampler.
    from assay.curation.sampler import sampled

    modes = (None, "empty") if settings.also_without_thinking else (None,)
    out.add_filters("not_judged")
    for row, groups in sampled(settings, out, modes=modes):
        (passed, judged), *rest = (one.counts for one in groups)
        if not judged:
            out.take("not_judged", row.keys, "no sample was judged")
            continue
        low, high = share_interval(passed / judged, judged)
        label: Row = {"passed": passed, "judged": judged}
        label |= {"low": round(low, 4), "high": round(high, 4)}
        for counts in rest:
            label["without_thinking"] = dict(zip(("passed", "judged"), counts, strict=True))
        out.write({**row.keys, "difficulty": label})


STAGE = DataStage(DifficultySettings, label_difficulty)
