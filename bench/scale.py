"""Overhead of sampling and judging in actors and over HTTP, compared with the same work in a
process.

    python -m bench.scale --model DIR [--clients 64] [--seconds 60] [--json]

The bench needs the extras ray, serve and judge. *Weights* is the time from the learner's tensors to
a checked load in an actor. *Sampling* compares this engine and one actor on the same problems.
*Verdicts* compares a worker of this machine with a worker behind an actor. *Server* sends requests
of many clients for a while and checks that no request is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from assay.config import SamplingConfig, ScaleConfig, parse
from assay.model.weights import Weights, fingerprint
from assay.scale.cluster import open_cluster
from assay.scale.listening import bind
from assay.scale.serve import VerifierServer
from assay.scale.verifying import VerifierActors
from assay.session.assemble import open_session
from assay.session.placement import on_actors
from assay.types import Completion, Group, Problem, Prompt
from assay.verify.service import VerifierService
from assay.verify.serving.process import Worker
from bench.workload import hardware

REPEATS = 5


def seconds_of(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the median of several repetitions, after one warm-up."""
    work()
    taken: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def paired(one: Callable[[], Any], other: Callable[[], Any], pairs: int) -> dict[str, float]:
    """Return the medians of two functions that run in turn, and the median ratio of the pairs.

    On a shared machine, the two runs of a pair have nearly the same load.
    """
    taken: list[tuple[float, float]] = []
    for number in range(1 + pairs):
        order = (one, other) if number % 2 else (other, one)
        seconds: dict[Any, float] = {}
        for work in order:
            started = time.perf_counter()
            work()
            seconds[work] = time.perf_counter() - started
        taken.append((seconds[one], seconds[other]))
    here, there = zip(*taken[1:], strict=True)  # the first pair is not counted
    ratios = sorted(b / a for a, b in taken[1:])
    return {
        "here_s": statistics.median(here),
        "there_s": statistics.median(there),
        "added_s": statistics.median(b - a for a, b in taken[1:]),
        "overhead": statistics.median(ratios) - 1,
        "overhead_quarter": ratios[len(ratios) // 4] - 1,
        "overhead_three_quarters": ratios[3 * len(ratios) // 4] - 1,
    }


def sampling(
    model: Path, num_prompts: int, group_size: int, tokens: int, pairs: int
) -> dict[str, float]:
    """Return the seconds of a weight load, and of the same sampling in this process and in an
    actor."""
    tree = {
        "model": {"path": str(model)},
        "data": {"train": ["none"], "template": "base"},
        "sampling": {"max_tokens": tokens},
        "engine": {"num_slots": num_prompts * group_size},
        "rl": {"num_prompts": num_prompts, "group_size": group_size},
        "scale": {"rollout_actors": 1},
    }
    config = parse(tree)
    problems = [Problem(f"p{n}", f"What is {n} + {n}?") for n in range(num_prompts)]
    settings = SamplingConfig(max_tokens=tokens)
    with ExitStack() as stack, VerifierService("exact", num_workers=1) as service:
        open_cluster(config.scale, stack)
        session = on_actors(open_session(config, service), stack)
        engine, actors = session.generator, session.actors
        assert actors is not None
        weights, learning = (
            Weights.of(session.loaded.model, 0),
            next(session.loaded.model.parameters()),
        )

        def load() -> None:
            learning.data.add_(1e-4)  # as after an update: nothing that was packed is right
            actors.load_policy(weights)

        size = sum(one.numel() * one.element_size() for one in weights.tensors.values())
        found = {
            "weights_mib": size / 2**20,
            "load_s": seconds_of(load, pairs),
            "of_it_one_hash_s": seconds_of(lambda: fingerprint(weights.tensors)),
        }
        return found | paired(
            lambda: engine.generate(problems, settings, group_size),
            lambda: actors.generate(problems, settings, group_size),
            pairs,
        )


def groups_of(count: int) -> list[Group]:
    """Return groups of one completion each, all different."""
    empty = Completion.from_text("").tokens
    return [
        Group(
            Problem(f"p{n}", "?", {"answer": str(n)}),
            Prompt("?", empty),
            (Completion.from_text(f"{n}", f"p{n}#0/0"),),
        )
        for n in range(count)
    ]


def verdicts(in_flight: int, pairs: int = 40) -> dict[str, float]:
    """Return milliseconds per verdict at a number in flight, for a worker here and one of an
    actor."""
    groups = groups_of(in_flight)
    with ExitStack() as stack:
        scale = ScaleConfig(verifier_actors=1)
        open_cluster(scale, stack)
        actors = VerifierActors(scale, {})
        stack.callback(actors.close)
        services: list[VerifierService] = []
        for spawn_worker in (Worker, actors.worker):
            service = VerifierService(
                "exact", num_workers=1, cache_mib=0.0, spawn_worker=spawn_worker
            )
            services.append(stack.enter_context(service))
            service.judge(groups)
        here, there = services
        taken = paired(lambda: here.judge(groups), lambda: there.judge(groups), pairs)
    a_verdict = 1000 / in_flight
    found = {"worker_ms": a_verdict * taken["here_s"], "actor_ms": a_verdict * taken["there_s"]}
    return {**found, "added_ms": a_verdict * taken["added_s"]}


def server(num_clients: int, seconds: float, rows: int = 8) -> dict[str, float]:
    """Return the results of many clients of a server over some time, and the growth of its
    memory."""
    import httpx2
    import uvicorn  # pyright: ignore[reportMissingImports]

    counts: Counter[str] = Counter()
    memory: list[float] = []
    with VerifierService("exact", num_workers=2) as service, bind("127.0.0.1", 0, None) as socket:
        app = VerifierServer(service, max_waiting=num_clients * rows // 2)
        running = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=running.run, args=([socket],))
        thread.start()
        url = f"http://127.0.0.1:{socket.getsockname()[1]}/judge"
        until = time.monotonic() + seconds

        def work(number: int) -> None:
            with httpx2.Client(trust_env=False, timeout=120.0) as client:
                turn = 0
                while time.monotonic() < until:
                    turn += 1
                    ids = [f"{number}-{turn}-{n}" for n in range(rows)]
                    body = [{"id": id, "prompt": "?", "answer": id, "completion": id} for id in ids]
                    reply = client.post(url, json={"rows": body})
                    counts[f"status_{reply.status_code}"] += 1
                    if reply.status_code == 200:
                        said = reply.json()["verdicts"]
                        right = [one["id"] for one in said] == ids
                        counts["verdicts"] += len(said) * right
                        counts["lost"] += 0 if right else rows
                        counts["wrong"] += sum(one["status"] != "passed" for one in said)
                    else:
                        time.sleep(0.05)

        clients = [threading.Thread(target=work, args=(n,)) for n in range(num_clients)]
        for one in clients:
            one.start()
        while any(one.is_alive() for one in clients):
            memory.append(resident_mib())
            time.sleep(1.0)
        running.should_exit = True
        thread.join()
    third = max(1, len(memory) // 3)
    found = {"clients": num_clients, "seconds": seconds, **counts}
    found |= {"lost": counts["lost"], "wrong": counts["wrong"]}
    return found | {"early_mib": max(memory[:third]), "late_mib": max(memory[-third:])}


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all parts and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"hardware": hardware(), "load": os.getloadavg()[0]}
    if options.model is not None:
        sizes = (options.prompts, options.group_size, options.tokens, options.pairs)
        found["sampling"] = sampling(options.model, *sizes)
    found["verdicts"] = verdicts(64)
    if options.seconds:
        found["server"] = server(options.clients, options.seconds)
    if options.json:
        print(json.dumps(found))
        return
    for part, figures in found.items():
        if isinstance(figures, dict):
            print(f"{part}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
        else:
            print(f"{part}: {figures}")


if __name__ == "__main__":
    main()
