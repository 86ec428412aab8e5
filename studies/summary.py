"""Count the verdicts on the pages of all studies, for studies/README.md and README.md.

python -m studies.summary
"""

from __future__ import annotations

import importlib
import re
import statistics
from collections import Counter
from collections.abc import Mapping

from studies.campaign import ROOT, Study
from studies.claims import Outcomes
from studies.page import Run, judged, read_runs

PAGES = ROOT / "docs" / "studies"
# An interval of 95 % misses on either side in one case of 40; a wrong verdict needs one side.
WRONG_SIDE = 0.025
BLOCK = re.compile(r"(<!-- studies.summary -->\n).*?(<!-- end -->)", re.DOTALL)


def studies() -> Mapping[str, tuple[Study, list[Run]]]:
    """Return each study that has a page, and the runs on its page."""
    return {
        path.stem: (study, read_runs(study, path.read_text(encoding="utf-8")))
        for path in sorted(PAGES.glob("*.md"))
        for study in [importlib.import_module(f"studies.{path.stem}").STUDY]
    }


def counts(study: Study, runs: list[Run]) -> Counter[str]:
    """Return the numbers of claims that were reproduced, were not reproduced, and are
    inconclusive."""
    words = [word.partition(" (")[0].partition(",")[0].lower() for _, word in judged(study, runs)]
    return Counter(words)


def correlation(study: Study, runs: list[Run]) -> float | None:
    """Return the correlation of two runs' accuracies over seeds, after subtraction of the arms'
    means.

    None if the page has only one run, or no column with that name. Near 1, the second run repeats
    the noise of the first. Runs with other seeds cannot be paired and are excluded.
    """
    paired = {run.kind: run.outcomes for run in runs}
    names = sorted(one for one in study.columns if one.startswith("accuracy"))
    name = "accuracy" if "accuracy" in names else next(iter(names), None)
    if name is None or "rounding" not in paired:
        return None
    first, second = (_deviations(paired[kind], name) for kind in ("first", "rounding"))
    shared = sorted(first.keys() & second.keys())
    return statistics.correlation([first[one] for one in shared], [second[one] for one in shared])


def _deviations(outcomes: Outcomes, name: str) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for arm, by_seed in outcomes.items():
        values = {seed: one[name] for seed, one in by_seed.items() if name in one}
        if len(set(values.values())) > 1:  # an arm without any noise says nothing of it
            mean = statistics.mean(values.values())
            found |= {(arm, seed): value - mean for seed, value in values.items()}
    return found


def table() -> str:
    """Return the counts of verdicts by study, and the expected number of wrong verdicts by
    chance."""
    lines = [
        "| study | claims | reproduced | not reproduced | inconclusive | second run"
        " | correlation |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    total: Counter[str] = Counter()
    for name, (study, runs) in studies().items():
        found = counts(study, runs)
        total += found
        second = "other seeds" if "seeds" in {run.kind for run in runs} else "other rounding"
        same = correlation(study, runs)
        cells = [str(found[word]) for word in ("reproduced", "not reproduced", "inconclusive")]
        lines.append(
            f"| `{name}` | {found.total()} | {' | '.join(cells)} | {second} |"
            f" {'' if same is None else f'{same:.2f}'} |"
        )
    cells = [str(total[word]) for word in ("reproduced", "not reproduced", "inconclusive")]
    lines.append(f"| all | {total.total()} | {' | '.join(cells)} | | |")
    once, twice = total.total() * WRONG_SIDE, total.total() * WRONG_SIDE**2
    lines.append(
        "\nA 95 % interval misses the true difference on the wrong side in 2.5 % of cases.\n"
        f"One run alone would therefore decide up to {once:.1f} of {total.total()} comparisons"
        f" wrongly, and two runs with independent noise {twice:.2f}.\n"
        f"For two runs with the same seeds, the number is between {twice:.2f} and {once:.1f}."
    )
    return "\n".join(lines)


def readme_row() -> str:
    """Return the sentence about the studies in the table of README.md."""
    every = studies()
    total: Counter[str] = sum((counts(*one) for one in every.values()), Counter())
    seeds = sum("seeds" in {run.kind for run in runs} for _, runs in every.values())
    return (
        f"In {len(every)} studies of a small model (eight seeds, two runs, new seeds in {seeds}"
        f" second run{'' if seeds == 1 else 's'}), {total['reproduced']} of {total.total()} claims"
        f" were reproduced, {total['not reproduced']} were not, and {total['inconclusive']} are"
        " inconclusive."
    )


def main() -> None:
    """Write the block of studies/README.md and the table row of README.md."""
    page = ROOT / "studies" / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(BLOCK.sub(rf"\g<1>{table()}\n\g<2>", text), encoding="utf-8")
    readme = ROOT / "README.md"
    row = re.compile(r"(\| Do claims of the literature hold\? \| ).*?( \| \[studies\])")
    text = readme.read_text(encoding="utf-8")
    readme.write_text(row.sub(rf"\g<1>{readme_row()}\g<2>", text), encoding="utf-8")


if __name__ == "__main__":
    main()
