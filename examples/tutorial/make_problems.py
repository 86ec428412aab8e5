"""Write the tutorial's problems: python examples/tutorial/make_problems.py problems

Two files of rows like {"id": "...", "question": "3+5-2=", "answer": "6"}: train.jsonl and
heldout.jsonl. No question stands in both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from assay.data.tasks import chain_sums

SIZES = {"train": 2000, "heldout": 200}


def write(folder: Path) -> None:
    """Write one file for each split; a question that was drawn twice stands in it once."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        drawn = chain_sums(size=size, split=split, num_terms=3, max_number=5)
        answers = {problem.prompt: problem.spec["answer"] for problem in drawn}
        rows = [
            {"id": f"{split}-{number}", "question": question, "answer": answer}
            for number, (question, answer) in enumerate(answers.items())
        ]
        path = folder / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} problems")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "problems"))
