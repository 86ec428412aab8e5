"""Verdicts of lm-eval beside Assay's, on the same prompts, problem by problem.

python -m bench.harness_agreement rows samples_local_gsm8k_*.jsonl rows.jsonl
    writes lm-eval's prompts as problems, and prints the `assay eval` that asks them: plain text,
    the same stop texts, greedy
python -m bench.harness_agreement agree samples_local_gsm8k_*.jsonl assay.jsonl [--json]
    compares what `assay eval --out assay.jsonl` wrote with lm-eval's samples

A problem with two verdicts is of one kind. ``agree``: the verdicts are equal. ``extraction``: the
texts are equal up to the stop text, so that only the reading of the answer differs. ``stop``: one
text is the beginning of the other. ``sampling``: the texts part before, as greedy tokens of two
engines may at a near tie. With ``--model FOLDER`` each difference has its margin: by how many nats
the model in float32 prefers lm-eval's next token to Assay's at the place where the texts part.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHOWN = 400  # characters of a text, around the place where two part
_ID = re.compile(r"harness-(\d+)")
_PASSED = ("exact_match", "pass_at_1")


@dataclass(frozen=True)
class Sample:
    """A sample of lm-eval. filter: name of the answer extraction, of which a task may have
    several."""

    number: int
    filter: str
    prompt: str
    until: tuple[str, ...]
    max_tokens: int
    text: str
    extracted: str
    passed: bool
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """Both verdicts on a problem, with the texts around their first difference."""

    id: str
    kind: str
    theirs: bool
    ours: bool
    their_answer: str
    our_answer: str
    differs_at: int | None
    their_text: str
    our_text: str
    margin: float | None = None


def read_samples(file: Path) -> list[Sample]:
    """Return the rows that lm-eval wrote with ``--log_samples``."""
    return [_sample(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _sample(row: Mapping[str, Any]) -> Sample:
    given = row["arguments"]["gen_args_0"]
    settings = given["arg_1"]
    until = settings.get("until", [])
    filtered = row["filtered_resps"][0]
    return Sample(
        number=int(row["doc_id"]),
        filter=str(row["filter"]),
        prompt=str(given["arg_0"]),
        until=tuple([until] if isinstance(until, str) else until),
        max_tokens=int(settings.get("max_gen_toks", 256)),
        text=str(row["resps"][0][0]),
        extracted=str(filtered[0] if isinstance(filtered, list) else filtered),
        passed=any(bool(row.get(name)) for name in _PASSED),
        document=row["doc"],
    )


def problems(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return each problem once, as a row for Assay with the prompt of lm-eval."""
    found: dict[int, dict[str, Any]] = {}
    for one in samples:
        row: dict[str, Any] = {"id": f"harness-{one.number}", "prompt": one.prompt}
        document = one.document
        if "test_list" in document:
            tests = [{"assert": str(test).replace("\r\n", "\n")} for test in document["test_list"]]
            row |= {"tests": tests, "verifier": "code"}
            row |= {"setup": setup} if (setup := document.get("test_setup_code")) else {}
        else:
            row["answer"] = str(document["answer"]).rpartition("####")[2].strip()
        found.setdefault(one.number, row)
    return list(found.values())


def command(samples: Sequence[Sample], rows: Path) -> str:
    """Return the `assay eval` command for the same problems."""
    stop = json.dumps(list(samples[0].until))
    words = ["assay", "eval", "MODEL", "--problems", str(rows), "--out", "assay.jsonl"]
    words += ["--max-tokens", str(samples[0].max_tokens)]
    for one in ("data.template=base", "data.prompt_template={question}", f"sampling.stop={stop}"):
        words += ["--set", one]
    return shlex.join(words)


Margin = Callable[[str, str, str], float | None]


def pairs(
    samples: Sequence[Sample], rows: Sequence[Mapping[str, Any]], margin: Margin | None = None
) -> Iterator[Pair]:
    """Yield each problem with both verdicts. margin: called with the prompt and two different
    texts."""
    ours = {
        int(found[1]): row
        for row in rows
        if (found := _ID.match(str(row["id"]))) and row["status"] in ("passed", "failed")
    }
    for one in samples:
        row = ours.get(one.number)
        if row is None:
            continue
        text, passed = str(row["completion"]), row["status"] == "passed"
        at = first_difference(until_stop(one.text, one.until), until_stop(text, one.until))
        start = max(0, (at or 0) - SHOWN // 2)
        yield Pair(
            id=f"harness-{one.number}",
            kind="agree" if passed == one.passed else _kind(one, text, at),
            theirs=one.passed,
            ours=passed,
            their_answer=one.extracted[-SHOWN:],
            our_answer=str(row.get("extracted") or "")[-SHOWN:],
            differs_at=at,
            their_text=one.text[start : start + SHOWN],
            our_text=text[start : start + SHOWN],
            margin=None if at is None or margin is None else margin(one.prompt, one.text, text),
        )


def margin_of(folder: str) -> Margin:
    """Return a function that gives by how many nats a model prefers the first of two texts.

    The function compares the first tokens in which the texts differ. It returns None if one text
    ends there.
    """
    import torch

    from assay.config import ModelConfig
    from assay.model.load import load_model

    loaded = load_model(ModelConfig(path=folder, dtype="float32"), "cpu", 0)

    @torch.no_grad()
    def margin(prompt: str, first: str, second: str) -> float | None:
        ids = [
            loaded.tokenizer(prompt + text, return_tensors="pt").input_ids[0]
            for text in (first, second)
        ]
        a, b = (one.tolist() for one in ids)
        alike = zip(a, b, strict=False)
        at = next((n for n, (x, y) in enumerate(alike) if x != y), None)
        if at is None:
            return None
        logits_V = loaded.model(input_ids=torch.tensor([a[:at]])).logits[0, -1].float()
        return float(logits_V[a[at]] - logits_V[b[at]])

    return margin


def until_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop text, without surrounding whitespace.

    Assay keeps a stop text and lm-eval removes it; the client of llama.cpp strips whitespace.
    """
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places, default=len(text))].strip()


def first_difference(first: str, second: str) -> int | None:
    """Return the index of the first difference of two texts; None for equal texts."""
    if first == second:
        return None
    alike = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(alike) if a != b), min(len(first), len(second)))


def _kind(one: Sample, text: str, at: int | None) -> str:
    if at is None:
        return "extraction"
    shorter = min(len(until_stop(one.text, one.until)), len(until_stop(text, one.until)))
    return "stop" if at == shorter else "sampling"


def summary(found: Sequence[Pair]) -> dict[str, Any]:
    """Return the counts of each kind, and every pair with different verdicts."""
    return {
        "num_problems": len(found),
        "kinds": dict(Counter(one.kind for one in found)),
        "equal_texts": sum(one.differs_at is None for one in found),
        "margins": sorted(one.margin for one in found if one.margin is not None),
        "passed": {
            "lm-eval": sum(one.theirs for one in found),
            "assay": sum(p.ours for p in found),
        },
        "differ": [asdict(one) for one in found if one.kind != "agree"],
    }


def main() -> None:
    """Write problems for Assay, or compare verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rows", "agree"))
    parser.add_argument("samples", type=Path, help="what --log_samples wrote")
    parser.add_argument("file", type=Path, help="problems to write, or completions to compare")
    parser.add_argument("--filter", help="the reading of lm-eval that counts. Default: each")
    parser.add_argument("--model", help="folder of the model, for margins")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    samples = read_samples(asked.samples)
    if asked.what == "rows":
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in problems(samples))
        asked.file.write_text("".join(lines), encoding="utf-8")
        print(command(samples, asked.file))
        return
    rows = [json.loads(line) for line in asked.file.read_text(encoding="utf-8").splitlines()]
    names = sorted({one.filter for one in samples}) if asked.filter is None else [asked.filter]
    margin = None if asked.model is None else margin_of(asked.model)
    found = {
        name: summary(list(pairs([one for one in samples if one.filter == name], rows, margin)))
        for name in names
    }
    if asked.json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for name, one in found.items():
        print(
            f"=== {name}: {one['num_problems']} problems, {one['equal_texts']} texts are equal ==="
        )
        print(f"passed: {one['passed']}; {one['kinds']}")
        if one["margins"]:
            print(f"margins, nats: {', '.join(f'{nats:+.3f}' for nats in one['margins'])}")
        for pair in one["differ"]:
            print(f"--- {pair['id']}, {pair['kind']}, parting at {pair['differs_at']}")
            for side, passed in (("their", pair["theirs"]), ("our", pair["ours"])):
                verdict = "passed" if passed else "failed"
                print(f"{side}s {verdict}, answer {pair[f'{side}_answer']!r}")
                print(f"    {pair[f'{side}_text']!r}")


if __name__ == "__main__":
    main()
