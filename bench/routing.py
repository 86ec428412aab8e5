"""Routing beside its two single choices: accuracy and generated tokens on a mixed set of sums.

python -m bench.routing --work DIR [--out docs/routing.svg] [--quick]

Needs the extras serve, judge and figures. Two models are trained where DIR/runs does not have them:
a cheap one that writes the answer at once, and a strong one that writes each step. Each is served
over Assay's engine (greedy), and `assay model route`'s server stands before both. The sums of 2, 4
and 6 numbers, in equal shares, are ones that neither was trained on. --quick: a check that it runs.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from statistics import fmean
from typing import Any

import assay
from assay.data.tasks import chain_sums, draw_chain, written_steps
from assay.init.tiny_model import make_model
from assay.run.intervals import stderr_of
from assay.scale.route import RouteServer
from assay.scale.route_config import open_judge, read_config
from assay.types import Problem
from assay.verify.service import VerifierService
from bench.engine_server import EngineServer, served
from bench.workload import hardware

TERMS = (2, 4, 6)
DATA = {"template": "base", "prompt_template": "{question}", "think": "free"}
MODELS = {
    "cheap": ((64, 2), (2, 2, 2, 3), 40_000, 200, 4e-3),
    "strong": ((128, 4), (2, 3, 4, 5, 6), 14_000, 600, 2e-3),
}
"""Width and layers; how many numbers its sums have; traces; tokens of a step; learning rate."""
RULES = {"label": (3, 5), "length": (5, 9), "confidence": (0.1, 0.3, 0.6, 1.0)}
"""Each rule's thresholds."""
Row = dict[str, Any]


def trained(name: str, work: Path, share: float) -> Path:
    """Return the checkpoint of a model. It is trained on a share of its traces if it does not
    exist."""
    run = work / "runs" / name
    (width, layers), terms, count, tokens, rate = MODELS[name]
    if not run.exists():
        fresh = make_model(work / f"fresh-{name}", 0, hidden_size=width, num_layers=layers)
        traces = work / f"{name}.jsonl"
        with traces.open("w", encoding="utf-8") as file:
            for index in range(round(count * share)):
                drawn = random.Random(f"route {name} {index}")
                chain = draw_chain(drawn, "train", drawn.choice(terms), 9, "+-")
                results = list(chain.partial_results())
                steps = f"<think>{';'.join(written_steps(chain, results))}</think>"
                text = f"{steps if name == 'strong' else ''}{results[-1]}"
                file.write(json.dumps({"prompt": f"{chain}=", "completion": text}) + "\n")
        schedule = {"warmup_steps": 50, "schedule": "linear", "final_fraction": 0.05}
        tree = {
            "run": {"name": name, "directory": str(work / "runs")},
            "model": {"path": str(fresh)},
            "data": DATA,
            "sft": {"traces": [str(traces)], "tokens_per_step": tokens},
            "optimizer": {"learning_rate": rate, **schedule},
            "checkpoint": {"every": 1_000_000, "keep_last": 1},
        }
        assay.train(tree)
    return max((run / "checkpoints").iterdir())


def asked(
    url: str, problems: Sequence[Problem], model: str, service: VerifierService
) -> list[dict[str, Any]]:
    """Return for each problem whether the reply is right, who gave it, and its tokens."""
    import httpx2

    client = httpx2.Client(trust_env=False, timeout=600.0)

    def ask(problem: Problem) -> dict[str, Any]:
        metadata = {"difficulty": problem.tags[0].removeprefix("terms-")}
        turns = [{"role": "user", "content": problem.prompt}]
        body = {"model": model, "messages": turns, "metadata": metadata}
        reply = client.post(f"{url}/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        text = reply.json()["choices"][0]["message"]["content"].rpartition("</think>")[2]
        written = reply.json()["usage"]["completion_tokens"]
        by = reply.headers["x-assay-route"].split()[0]
        return {"text": text, "model": by, "tokens": written}

    with client, ThreadPoolExecutor(64) as pool:
        found = list(pool.map(ask, problems))
    pairs = zip(problems, (one["text"] for one in found), strict=True)
    for one, verdict in zip(found, service.judge_text(pairs), strict=True):
        one["right"] = verdict.correct
    return found


def measured(
    urls: Mapping[str, str], problems: Sequence[Problem], work: Path, service: VerifierService
) -> list[Row]:
    """Return a row for each model alone, and for each rule at each threshold."""
    single: dict[str, list[Row]] = {}
    found: dict[str, list[Row]] = {}
    models = "".join(f'[{n}]\nurl = "{u}"\nmodel = "{n}"\ntimeout = 600\n' for n, u in urls.items())
    for rule, threshold in [(rule, one) for rule, ones in RULES.items() for one in ones]:
        path = work / "route.toml"
        path.write_text(f'[route]\nby = "{rule}"\nthreshold = {threshold}\n{models}')
        with ExitStack() as stack:
            stack.enter_context(redirect_stderr(io.StringIO()))  # a line of each request
            config = read_config(path)
            app = RouteServer(config, open_judge(config, str(path), stack))
            url = stack.enter_context(served(app))
            single = single or {name: asked(url, problems, name, service) for name in urls}
            app.counted.clear()
            own = asked(url, problems, "route", service)
        for one, cheap in zip(own, single["cheap"], strict=True):
            thrown_away = rule == "confidence" and one["model"] == "strong"
            one["tokens"] += cheap["tokens"] if thrown_away else 0
        counted = sum(n for (what, *_), n in app.counted.items() if what == "output_tokens")
        assert counted == sum(one["tokens"] for one in own), "/metrics has other tokens"
        found[f"{rule} {threshold:g}"] = own
    return [row_of(name, own, single) for name, own in (single | found).items()]


def row_of(name: str, found: Sequence[Row], single: Mapping[str, Sequence[Row]]) -> Row:
    """Return means over problems, with standard errors, and what is gained over each model alone:
    the mean and the error of the problems' differences."""
    row: Row = {"name": name, "problems": len(found)}
    row["by_strong"] = sum(one["model"] == "strong" for one in found) / len(found)
    for what in ("right", "tokens"):
        mine = [float(one[what]) for one in found]
        row[what] = fmean(mine), stderr_of(mine)
        for other, theirs in single.items():
            gained = [m - float(one[what]) for m, one in zip(mine, theirs, strict=True)]
            row[f"{what}_over_{other}"] = fmean(gained), stderr_of(gained)
    return row


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the figure: accuracy over generated tokens, with standard errors."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "assay", "font.size": 9}):
        figure, axis = pyplot.subplots(figsize=(6, 4))
        for name, mark in zip(("cheap", "strong", *RULES), "ssovD", strict=True):
            own = [row for row in rows if row["name"].split()[0] == name]
            (x, dx), (y, dy) = (
                zip(*(r[key] for r in own), strict=True) for key in ("tokens", "right")
            )
            axis.errorbar(x, y, dy, dx, label=name, marker=mark, capsize=3, alpha=0.8)
        axis.set_xlabel("generated tokens of a problem")
        axis.set_ylabel("accuracy")
        axis.grid(True, alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="lower right")
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, measure, write the figure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="an SVG; its JSON stands beside it")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    count, share = (2, 0.002) if options.quick else (40, 1.0)
    problems: list[Problem] = []
    for terms in TERMS:
        drawn = chain_sums(2000, 11, "heldout", num_terms=terms)
        problems += list({str(one.prompt): one for one in drawn}.values())[:count]
    with ExitStack() as stack:
        service = stack.enter_context(VerifierService("exact", num_workers=1))
        urls: dict[str, str] = {}
        for name in MODELS:
            server = EngineServer(trained(name, options.work, share), DATA, service)
            urls[name] = stack.enter_context(served(server))
        rows = measured(urls, problems, options.work, service)
    found = {"hardware": hardware(), "rows": rows}
    if options.out:
        draw(rows, options.out)
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
