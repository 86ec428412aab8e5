"""Generated Kubernetes manifests with faults, and their repairs, for the verifier ``manifests``.

`assay.data.small_manifests` generates shorter problems, for models of about one megabyte. Row n
depends only on the seed and on n. A hash of the broken manifest assigns each problem to the split
train or heldout. Training and held-out sets are therefore disjoint for all sizes and seeds.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.manifest_tasks:broken_manifests?size=500 yields manifests with one fault.
    assay.data.manifest_tasks:broken_manifests?faults=["image_tag"] yields wrong image tags.
    assay.data.manifest_tasks:broken_manifests?form=changes has lists of changes as replies.
    assay.data.manifest_tasks:repairs?size=500 yields traces with the right reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_split, in_split
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.types import Problem

NAMES = (
    "api", "auth", "blog", "cart", "chat", "docs", "feed", "files", "forum", "gate", "mail", "maps",
    "news", "orders", "pay", "photo", "queue", "search", "shop", "stats", "store", "users", "web",
    "wiki",
)  # fmt: skip
MAX_FAULTS = 6
IMAGES = ("nginx:1.27", "redis:7.4", "node:22.9", "python:3.13", "httpd:2.4", "caddy:2.8")
PORTS = (3000, 5000, 8000, 8080, 8443, 9000, 9090)
ASKED = "Repair these Kubernetes manifests and change nothing else."
REPLIES = {
    "manifests": "Reply with all of them in one YAML block.",
    "changes": 'Reply with the changes alone, as lines "Kind/name path: value" in a YAML block.',
}

Documents = dict[str, dict[str, Any]]
"""Kubernetes objects of one application, keyed by their ``kind``."""


@dataclass(slots=True)
class Broken:
    """A generated web application, and the faults that were inserted into its manifests.

    may_change, may_remove: paths that the verifier lets a reply change or remove. rules: rules of
    the verifier ``manifests`` that a repair must satisfy. repair: right value by path; None means
    that the path is removed. text: function that edits the serialized YAML, for faults that a
    parsed object cannot represent.
    """

    documents: Documents
    random: Random
    may_change: list[str] = field(default_factory=list[str])
    may_remove: list[str] = field(default_factory=list[str])
    rules: list[str] = field(default_factory=list[str])
    repair: dict[str, Any] = field(default_factory=dict[str, Any])
    text: Callable[[str], str] = str

    def set(self, kind: str, path: Sequence[str | int], value: Any, free: bool = False) -> None:
        """Replace the value at a path by a wrong value.

        free: whether the verifier accepts every valid value at the path, not only the original
        value.
        """
        inner = holder(self.documents[kind], path)
        if free:
            self.may_change.append(f"{self.label(kind)} {written(path)}")
        right, inner[path[-1]] = inner[path[-1]], value
        # The label of a Kubernetes object is computed after the fault is inserted.
        # A reply must name an object as the broken manifest does, even if the name is the fault.
        self.repair[f"{self.label(kind)} {written(path)}"] = right

    def add(self, kind: str, path: Sequence[str | int], value: Any) -> None:
        """Insert a forbidden value at a path of the manifests that has no value."""
        place = f"{self.label(kind)} {written(path)}"
        self.repair[place] = None
        self.may_remove.append(place)
        holder(self.documents[kind], path)[path[-1]] = value

    def label(self, kind: str) -> str:
        return f"{kind}/{self.documents[kind]['metadata']['name']}"


def holder(document: Any, path: Sequence[str | int]) -> Any:
    """Return the mapping or list that contains the value at a path of the manifests."""
    for step in path[:-1]:
        document = document[step]
    return document


def written(path: Sequence[str | int]) -> str:
    """Return a path in the verifier's syntax, such as ``spec.ports[0].port``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def application(random: Random) -> Documents:
    """Return the Kubernetes objects of a random web application without faults."""
    name = random.choice(NAMES)
    # Each Kubernetes object gets its own copy of the labels.
    # PyYAML writes an object that occurs twice as an anchor and an alias (&id001, *id001).
    labels = {"app": name}
    container = _container(name, random)
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"{name}-data"}}],
    }
    specs: Mapping[str, tuple[str, str, Any]] = {
        "ConfigMap": ("v1", f"{name}-settings", {"data": {"mode": "fast"}}),
        "PersistentVolumeClaim": (
            "v1",
            f"{name}-data",
            {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": f"{random.randint(1, 20)}Gi"}},
                }
            },
        ),
        "Deployment": (
            "apps/v1",
            name,
            {
                "spec": {
                    "replicas": random.randint(1, 5),
                    "selector": {"matchLabels": {**labels}},
                    "template": {"metadata": {"labels": {**labels}}, "spec": pod},
                }
            },
        ),
        "Service": (
            "v1",
            name,
            {
                "spec": {
                    "type": random.choice(("ClusterIP", "NodePort")),
                    "selector": {**labels},
                    "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
                }
            },
        ),
        "Ingress": (
            "networking.k8s.io/v1",
            name,
            {"spec": {"rules": [_ingress_rule(name)]}},
        ),
        "HorizontalPodAutoscaler": (
            "autoscaling/v2",
            name,
            {
                "spec": {
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                    "minReplicas": 1,
                    "maxReplicas": random.randint(6, 9),
                }
            },
        ),
    }
    return {
        kind: {"apiVersion": version, "kind": kind, "metadata": {"name": called}, **body}
        for kind, (version, called, body) in specs.items()
    }


def _container(name: str, random: Random) -> dict[str, Any]:
    memory, cpu = random.choice((64, 128, 256)), random.choice((50, 100, 200))
    settings = {"configMapKeyRef": {"name": f"{name}-settings", "key": "mode"}}
    return {
        "name": name,
        "image": random.choice(IMAGES),
        "ports": [{"name": "http", "containerPort": random.choice(PORTS)}],
        "env": [{"name": "MODE", "valueFrom": settings}],
        "resources": {
            "requests": {"cpu": f"{cpu}m", "memory": f"{memory}Mi"},
            "limits": {"cpu": f"{2 * cpu}m", "memory": f"{2 * memory}Mi"},
        },
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}},
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }


def _ingress_rule(name: str) -> dict[str, Any]:
    backend = {"service": {"name": name, "port": {"number": 80}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    return {"host": f"{name}.example.com", "http": {"paths": [path]}}


POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", 0)
BACKEND = ("spec", "rules", 0, "http", "paths", 0, "backend", "service")


def slip(word: str, random: Random) -> str:
    """Return a misspelled word: two neighboring letters swapped, one doubled, or one omitted."""
    # Swapping two equal letters changes nothing, and a typo may yield another valid name.
    # If a typo changes nothing or yields a valid name, the loop draws another typo.
    while True:
        n = random.randrange(len(word) - 1)
        made = random.choice(
            (
                word[:n] + word[n + 1] + word[n] + word[n + 2 :],
                word[:n] + word[n] + word[n:],
                word[:n] + word[n + 1 :],
            )
        )
        if made != word and made not in NAMES:
            return made


def _slipped(kind: str, *path: str | int, free: bool = False) -> Callable[[Broken], None]:
    """Return a function that misspells the text at a path."""

    def make(app: Broken) -> None:
        value = holder(app.documents[kind], path)[path[-1]]
        app.set(kind, path, slip(value, app.random), free)

    return make


def _replaced(
    kind: str, *path: str | int, by: Sequence[Any], free: bool = False
) -> Callable[[Broken], None]:
    """Return a function that replaces the value at a path by a random element of ``by``."""
    return lambda app: app.set(kind, path, app.random.choice(by), free)


def _renamed(kind: str, *path: str | int) -> Callable[[Broken], None]:
    """Return a function that misspells the last key of a path in the manifests."""

    def make(app: Broken) -> None:
        inner, key = holder(app.documents[kind], path), path[-1]
        wrong = slip(str(key), app.random)
        app.repair[f"{app.label(kind)} {written((*path[:-1], wrong))}"] = None
        app.repair[f"{app.label(kind)} {written(path)}"] = inner[key]
        # The whole mapping is rebuilt, so that the misspelled key keeps its position.
        # With pop and insert, the misspelled key would always be the mapping's last key.
        items = [(wrong if each == key else each, value) for each, value in inner.items()]
        inner.clear()
        inner.update(items)

    return make


def _removed(kind: str, *path: str | int, rule: str) -> Callable[[Broken], None]:
    """Return a function that removes the value at a path.

    Any value that satisfies the verifier rule ``rule`` repairs the fault.
    """

    def make(app: Broken) -> None:
        place = f"{app.label(kind)} {written(path)}"
        app.repair[place] = holder(app.documents[kind], path).pop(path[-1])
        app.may_change.append(place)
        app.rules.append(rule)

    return make


def _added(kind: str, *path: str | int, value: Any, rule: str) -> Callable[[Broken], None]:
    """Return a function that inserts a value that a rule of the verifier forbids."""

    def make(app: Broken) -> None:
        app.add(kind, path, value)
        app.rules.append(rule)

    return make


def _image_tag(app: Broken) -> None:
    image = app.documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"]
    name = image.partition(":")[0]
    app.set("Deployment", (*CONTAINER, "image"), app.random.choice((name, f"{name}:latest")), True)
    app.rules.append("images")


def _request_above_limit(app: Broken) -> None:
    path = (*CONTAINER, "resources", "requests", "memory")
    app.set("Deployment", path, "4Gi", free=True)


def _tab(app: Broken) -> None:
    """Indent one line of the YAML text by a tab, which YAML forbids."""

    # A parsed object has no indentation, so the fault edits the serialized text.
    def make(text: str) -> str:
        lines = text.split("\n")
        places = [n for n, line in enumerate(lines) if line.startswith("  ") and ":" in line]
        n = app.random.choice(places)
        lines[n] = "\t" + lines[n].lstrip(" ")
        return "\n".join(lines)

    app.text = make


def _key_twice(app: Broken) -> None:
    # A Python dict cannot contain a key twice, so the fault edits the serialized YAML text.
    def make(text: str) -> str:
        replicas = app.documents["Deployment"]["spec"]["replicas"]
        line = f"  replicas: {replicas}\n"
        return text.replace(line, line + f"  replicas: {replicas + 1}\n")

    app.text = make


FAULTS: Mapping[str, Callable[[Broken], None]] = {
    "service_selector": _slipped("Service", "spec", "selector", "app"),
    "template_label": _slipped("Deployment", *POD[:2], "metadata", "labels", "app"),
    "target_port": _slipped("Service", "spec", "ports", 0, "targetPort", free=True),
    "ingress_service": _slipped("Ingress", *BACKEND, "name"),
    "ingress_port": _replaced("Ingress", *BACKEND, "port", "number", by=(8080, 443, 81)),
    "config_map_name": _slipped("ConfigMap", "metadata", "name"),
    "config_map_key": _slipped(
        "Deployment", *CONTAINER, "env", 0, "valueFrom", "configMapKeyRef", "key"
    ),
    "mount_name": _slipped("Deployment", *CONTAINER, "volumeMounts", 0, "name"),
    "claim_name": _slipped(
        "Deployment", *POD, "volumes", 0, "persistentVolumeClaim", "claimName"
    ),
    "autoscaler_target": _slipped("HorizontalPodAutoscaler", "spec", "scaleTargetRef", "name"),
    "autoscaler_kind": _replaced(
        "HorizontalPodAutoscaler", "spec", "scaleTargetRef", "kind", by=("StatefulSet", "Pod")
    ),
    "probe_port": _slipped(
        "Deployment", *CONTAINER, "readinessProbe", "httpGet", "port", free=True
    ),
    "unknown_key": _renamed("Deployment", *CONTAINER, "image"),
    "unknown_spec_key": _renamed("Service", "spec", "selector"),
    "number_as_text": _replaced(
        "Deployment", "spec", "replicas", by=("two", "3", "one"), free=True
    ),
    "api_version": _replaced("Deployment", "apiVersion", by=("apps/v1beta1", "v1")),
    "choice": _slipped("Ingress", *BACKEND[:-2], "pathType", free=True),
    "quantity": _replaced(
        "PersistentVolumeClaim",
        *("spec", "resources", "requests", "storage"),
        by=("10GB", "ten"),
        free=True,
    ),
    "request_above_limit": _request_above_limit,
    "missing_limit": _removed(
        "Deployment", *CONTAINER, "resources", "limits", "memory", rule="limits"
    ),
    "image_tag": _image_tag,
    "privileged": _added(
        "Deployment", *CONTAINER, "securityContext", "privileged", value=True, rule="privileged"
    ),
    "host_network": _added("Deployment", *POD, "hostNetwork", value=True, rule="host_access"),
    "run_as_root": _added("Deployment", *POD, "securityContext", "runAsUser", value=0, rule="root"),
    "tab": _tab,
    "key_twice": _key_twice,
}  # fmt: skip
"""Functions that insert a fault into an application, by the fault's name."""
TEXT_FAULTS = ("tab", "key_twice")
"""Faults of YAML syntax. A reply of the form ``changes`` cannot repair a syntax error."""
CONFLICTS = (
    {*TEXT_FAULTS},
    {"service_selector", "unknown_spec_key"},
    {"unknown_key", "image_tag"},
    {"number_as_text", "key_twice"},
    {"missing_limit", "request_above_limit"},
)
"""Sets of faults that overwrite each other. A problem contains at most one fault of each set."""


@dataclass(frozen=True, slots=True)
class Task:
    """One repair problem.

    broken, good: YAML text of the manifests with and without the faults. changes: right value by
    path. spec: keys for the verifier. tags: names of the faults.
    """

    broken: str
    good: str
    changes: Mapping[str, Any]
    spec: Mapping[str, Any]
    tags: tuple[str, ...]


@source
def broken_manifests(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    faults: Sequence[str] = (),
    num_faults: int = 1,
    form: str = "manifests",
) -> Sequence[Problem]:
    """Return problems with broken manifests of web applications, for the verifier ``manifests``.

    faults: names of the faults to choose from (keys of `FAULTS`); empty means all faults.
    num_faults: number of faults per problem.
    form: reply format, ``manifests`` (whole manifests) or ``changes`` (a list of changes).
    """
    names = _check(split, faults, num_faults, form)

    def make(index: int) -> Problem:
        task = draw_task(Random(f"manifests {seed} {index}"), split, names, num_faults)
        prompt = f"{ASKED} {REPLIES[form]}\n\n```yaml\n{task.broken}```"
        name = f"manifests-{split}-{seed}-{index}"
        spec = {**task.spec, "form": form}
        return Problem(name, prompt, spec, tags=("manifests", *task.tags))

    return Generated(size, make)


@source
def repairs(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    faults: Sequence[str] = (),
    num_faults: int = 1,
    form: str = "manifests",
) -> Sequence[Trace]:
    """Return traces whose prompts are those of `broken_manifests` and whose completions are
    right."""
    problems = broken_manifests(size, seed, split, faults, num_faults, form)
    names = _check(split, faults, num_faults, form)

    def make(index: int) -> Trace:
        task = draw_task(Random(f"manifests {seed} {index}"), split, names, num_faults)
        reply = task.good if form == "manifests" else yaml_text([task.changes])
        return Trace(problems[index].prompt, f"```yaml\n{reply}```")

    return Generated(size, make)


def draw_task(random: Random, split: Split, faults: Sequence[str], num_faults: int) -> Task:
    """Return a random repair problem that belongs to the given split."""
    while True:
        good = application(random)
        chosen = random.sample(faults, num_faults)
        if any(len(pair & {*chosen}) > 1 for pair in CONFLICTS):
            continue
        app = Broken(deepcopy(good), random)
        for name in chosen:
            FAULTS[name](app)
        broken = app.text(yaml_text(app.documents.values()))
        if in_split(broken, split):
            break
    text = yaml_text(good.values())
    spec = {
        "keep": text,
        "may_change": app.may_change,
        "may_remove": app.may_remove,
        "rules": ["references", "values", *dict.fromkeys(app.rules)],
        "original": broken,
        "credit": "weighted",
    }
    return Task(broken, text, app.repair, spec, tuple(chosen))


def yaml_text(documents: Any) -> str:
    """Serialize Kubernetes objects as a multi-document YAML text."""
    import yaml

    # PyYAML's C writer is ten times as fast as its Python writer, but is missing in some builds.
    writer = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # PyYAML by default folds lines at 80 characters; the width keeps each value on one line.
    return yaml.dump_all([*documents], Dumper=writer, sort_keys=False, width=10_000)


def _check(split: str, faults: Sequence[str], num_faults: int, form: str) -> list[str]:
    check_split(split)
    if form not in REPLIES:
        raise DataError(message("form", repr(form), ", ".join(REPLIES)))
    known = [name for name in FAULTS if form == "manifests" or name not in TEXT_FAULTS]
    for name in faults:
        if name not in known:
            raise DataError(message("faults", repr(name), ", ".join(known)))
    names = [*faults] or known
    most = min(len(names), MAX_FAULTS)
    if type(num_faults) is not int or not 1 <= num_faults <= most:
        raise DataError(message("num_faults", repr(num_faults), f"1 to {most}"))
    if num_faults > 1 and len(names) < 2 * len(CONFLICTS):
        # If the list of faults is short, every random choice of faults may contain a conflict.
        # With faults that always conflict, the rejection loop of `draw_task` would never end.
        clash = next((pair for pair in CONFLICTS if len(pair & {*names}) > 1), None)
        if clash is not None:
            found = " and ".join(sorted(clash & {*names}))
            raise DataError(message("faults", found, "one of them, with num_faults > 1"))
    return names
