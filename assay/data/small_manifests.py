"""Generated Kubernetes manifests with faults, short enough for a model of about one megabyte.

The prompt lists values of a Pod and its Service, one value per line. The reply has lines in the
format of the prompt, and each line changes one value. The verifier ``manifests`` checks the
complete manifests after the changes. Row n of a source depends only on its seed and on n. A hash of
the prompt assigns each problem to the train or heldout split.

The source has the address ``assay.data.small_manifests:broken?size=2000&num_faults=2``. For
example, a prompt contains these two lines:

    Pod/web metadata.labels.app: web
    Service/web spec.selector.app: wbe
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

from assay.data.manifest_tasks import NAMES, holder, slip, written, yaml_text
from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_split, in_split
from assay.errors import DataError, message
from assay.types import Problem

PORTS = (3000, 5000, 6379, 8000, 8080, 8443, 9000, 9090)
PROTOCOLS = ("TCP", "UDP", "SCTP")
# For each path of a value in the prompt: the fault that may occur there, or "".
# A value whose fault is "" is always right.
PLACES: Mapping[tuple[str, tuple[str | int, ...]], str] = {
    ("Pod", ("metadata", "labels", "app")): "",
    ("Pod", ("spec", "containers", 0, "ports", 0, "containerPort")): "",
    ("Service", ("spec", "selector", "app")): "selector",
    ("Service", ("spec", "ports", 0, "protocol")): "protocol",
    ("Service", ("spec", "ports", 0, "targetPort")): "port",
}
FAULTS = tuple(filter(None, PLACES.values()))


@dataclass(frozen=True, slots=True)
class SmallRepair:
    """One repair problem.

    broken, right: values of the prompt by object and path, with and without the faults. spec: keys
    for the verifier.
    """

    broken: Mapping[str, Any]
    right: Mapping[str, Any]
    spec: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        return listed(self.broken)


@source
def broken(
    size: int = 1000, seed: int = 0, split: Split = "train", num_faults: int = 1, turns: int = 1
) -> Sequence[Problem]:
    """Return problems whose prompt lists values with faults, for the verifier ``manifests``.

    turns: maximum number of replies to one problem in the environment ``manifests``, which has
    several turns.
    """
    check(split, num_faults)

    def make(index: int) -> Problem:
        task = draw(Random(f"small manifests {seed} {index}"), split, num_faults)
        name = f"small-manifests-{split}-{seed}-{index}"
        return Problem(
            name, task.prompt, {**task.spec, "turns": turns, "faults_shown": 1}, tags=("manifests",)
        )

    return Generated(size, make)


def draw(random: Random, split: Split, num_faults: int) -> SmallRepair:
    """Return a random repair problem that belongs to the given split."""
    while True:
        documents = _documents(random)
        right = _values(documents)
        good = deepcopy(documents)
        chosen = random.sample(FAULTS, num_faults)
        for (kind, path), fault in PLACES.items():
            if fault in chosen:
                inner = holder(documents[kind], path)
                inner[path[-1]] = _wrong(fault, inner[path[-1]], random)
        broken_values = _values(documents)
        if in_split(listed(broken_values), split):
            break
    texts = {"keep": yaml_text(good.values()), "original": yaml_text(documents.values())}
    return SmallRepair(broken_values, right, {**texts, "form": "changes", "credit": "weighted"})


def listed(values: Mapping[str, Any]) -> str:
    """Return values of manifests as text, with one line ``Kind/name path: value`` per value."""
    return "".join(f"{place}: {value}\n" for place, value in values.items())


def _documents(random: Random) -> dict[str, dict[str, Any]]:
    name, port = random.choice(NAMES), random.choice(PORTS)
    protocol = random.choice(PROTOCOLS)
    container = {
        "name": name,
        "image": f"{name}:1",
        "ports": [{"containerPort": port, "protocol": protocol}],
    }
    service_port = {"protocol": protocol, "port": 80, "targetPort": port}
    bodies: Mapping[str, Any] = {
        "Pod": {"containers": [container]},
        "Service": {"selector": {"app": name}, "ports": [service_port]},
    }
    return {
        kind: {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": spec,
        }
        for kind, spec in bodies.items()
    }


def _wrong(fault: str, value: Any, random: Random) -> Any:
    if fault == "port":
        return random.choice([port for port in PORTS if port != value])
    return slip(value, random)


def _values(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the prompt lists, with ``Kind/name path`` as keys."""
    return {
        f"{kind}/{documents[kind]['metadata']['name']} {written(path)}": holder(
            documents[kind], path
        )[path[-1]]
        for kind, path in PLACES
    }


def check(split: str, num_faults: int) -> None:
    """Raise DataError for an unknown split or an invalid number of faults."""
    check_split(split)
    if type(num_faults) is not int or not 1 <= num_faults <= len(FAULTS):
        raise DataError(message("num_faults", repr(num_faults), f"1 to {len(FAULTS)}"))
