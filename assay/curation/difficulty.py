"""Data transform ``label_difficulty``: measure a model's pass rate on each problem."""

from __future__ import annotations

from assay.curation.asking import AskingSettings
from assay.curation.base import DataStage
from assay.curation.output import Output, Row
from assay.run.intervals import share_interval


class DifficultySettings(AskingSettings):
    """Label each problem with a model's pass rate over several samples.

    Each problem's row gets the key ``difficulty``: ``passed`` and ``judged`` count samples, ``low``
    and ``high`` are the 95 % confidence interval of the pass rate (Wilson).
    """

    also_without_thinking: bool = False
    """Also sample in no-think mode, equally often, and add ``without_thinking`` to the label.
    Problems solved in this mode were guessed or need no reasoning."""

    def num_completions(self, num_read: int | None) -> int | None:
        """Return the number of completions for a number of input rows, over all think modes."""
        found = super().num_completions(num_read)
        return found if found is None else found * (1 + self.also_without_thinking)


def label_difficulty(settings: DifficultySettings, out: Output) -> None:
    """Write each problem with its label. The filter ``not_judged`` removes unlabeled problems."""
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
