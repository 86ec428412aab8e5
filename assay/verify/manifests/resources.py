"""The resources of a set of manifests: identity, lookup, pods, and paths of values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

# Kinds without a namespace.
# The table exists because the schemas do not say which kinds of resources are namespaced.
CLUSTER_KINDS = frozenset(
    [
        "APIService",
        "CertificateSigningRequest",
        "ClusterRole",
        "ClusterRoleBinding",
        "CSIDriver",
        "CSINode",
        "CustomResourceDefinition",
        "DeviceClass",
        "FlowSchema",
        "IngressClass",
        "MutatingWebhookConfiguration",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "PriorityLevelConfiguration",
        "RuntimeClass",
        "StorageClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "VolumeAttachment",
    ]
)
# Path of the pod template, by kind of workload.
TEMPLATES = {
    "Deployment": "spec.template",
    "StatefulSet": "spec.template",
    "DaemonSet": "spec.template",
    "ReplicaSet": "spec.template",
    "ReplicationController": "spec.template",
    "Job": "spec.template",
    "CronJob": "spec.jobTemplate.spec.template",
}

_STEP = re.compile(
    r"""\.?(?:
    (?P<key>[^.\[\]'"\s]+)
    |\['(?P<quoted>[^']+)'\]
    |\[(?P<index>\d+)\]
    |\[(?P<all>\*)\]
    |\[(?P<field>[^=\]\s]+)=(?P<value>[^\]]+)\])""",
    re.VERBOSE,
)

Step = tuple[str, str]
"""One step of a path: (``key``, name), (``index``, number), (``all``, ``*``) or (field, value)."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One document, such as ``Deployment/web``.

    namespace: "" for kinds without a namespace.
    body: the whole document.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    body: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, or the pod template of a workload.

    owner: resource that contains the pod.
    path: path of the pod's spec in the resource, with a final dot.
    """

    owner: Resource
    path: str
    labels: Mapping[str, Any]
    spec: Mapping[str, Any]

    @property
    def namespace(self) -> str:
        return self.owner.namespace

    def containers(self, init: bool = True) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (location, container) of each container. init: include init containers."""
        for key in ("initContainers", "containers") if init else ("containers",):
            for number, each in enumerate(tables(self.spec.get(key))):
                name = each.get("name")
                shown = f"name={name}" if isinstance(name, str) else number
                yield f"{self.owner.label} {self.path}{key}[{shown}]", each


@dataclass(frozen=True, eq=False)
class Bundle:
    """All resources of a completion.

    external: ``Kind/name`` of resources that exist outside the manifests.
    """

    resources: tuple[Resource, ...]
    external: frozenset[str] = frozenset()

    def of_kind(self, *kinds: str) -> list[Resource]:
        return [each for each in self.resources if each.kind in kinds]

    def find(self, kind: str, name: Any, namespace: str) -> Resource | None:
        """Return the resource with this kind, name and namespace, or None."""
        wanted = (kind, "" if kind in CLUSTER_KINDS else namespace, name)
        return next((each for each in self.resources if each.identity == wanted), None)

    def exists(self, kind: str, name: Any, namespace: str) -> bool:
        """Return whether a resource is in the bundle or in `external`."""
        return f"{kind}/{name}" in self.external or bool(self.find(kind, name, namespace))

    def pods(self) -> Iterator[Pod]:
        """Yield every pod and pod template."""
        for each in self.resources:
            if each.kind == "Pod":
                path, body = "", each.body
            elif each.kind in TEMPLATES:
                path, body = TEMPLATES[each.kind] + ".", at(each.body, TEMPLATES[each.kind])
            else:
                continue
            yield Pod(
                each, f"{path}spec.", table(at(body, "metadata.labels")), table(at(body, "spec"))
            )


def resource(body: Any) -> Resource | str:
    """Return the resource of a document, or the reason why the document is no resource."""
    if not isinstance(body, dict):
        return f"a {type(body).__name__}, not a mapping"
    document = cast("dict[str, Any]", body)
    kind, version = document.get("kind"), document.get("apiVersion")
    name = at(document, "metadata.name")
    for key, value in (("apiVersion", version), ("kind", kind), ("metadata.name", name)):
        if not isinstance(value, str) or not value:
            return f"{key} is {'missing' if value is None else 'not a text'}"
    assert isinstance(kind, str) and isinstance(version, str) and isinstance(name, str)
    namespace = at(document, "metadata.namespace")
    # kubectl applies resources without a namespace to `default`.
    namespace = namespace if isinstance(namespace, str) and namespace else "default"
    return Resource(version, kind, "" if kind in CLUSTER_KINDS else namespace, name, document)


def table(value: Any) -> Mapping[str, Any]:
    """Return a mapping unchanged. Return an empty mapping for any value that is not a mapping."""
    # Rules must not raise for malformed documents, which the schema check reports.
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def tables(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings that a list contains.

    Return an empty list for any value that is not a list.
    """
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", each) for each in items if isinstance(each, dict)]


def at(value: Any, path: str) -> Any:
    """Return the first value at a path, or None."""
    return next((each for _, each in find(value, path)), None)


def find(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each value that a path selects. ``[*]`` selects all items."""
    found: list[tuple[str, Any]] = [("", value)]
    for step in parse_path(path):
        found = [inner for where, each in found for inner in _follow(where, each, step)]
    yield from found


def _follow(where: str, value: Any, step: Step) -> Iterator[tuple[str, Any]]:
    kind, name = step
    if kind == "key":
        if isinstance(value, dict) and name in value:
            yield join(where, name), value[name]
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[Any]", value)):
            if chooses(step, number, each):
                yield f"{where}[{number}]", each


def chooses(step: Step, number: int, item: Any) -> bool:
    """Return whether a path's step selects an item of a list."""
    kind, name = step
    if kind == "index":
        return number == int(name)
    # The step [name=80] also selects an item whose value is the number 80.
    return kind == "all" or (kind != "key" and str(table(item).get(kind.removeprefix("="))) == name)


def join(where: str, key: str) -> str:
    """Return a resource path extended by a key."""
    if re.fullmatch(r"[^.\[\]'\"\s]+", key):
        return f"{where}.{key}" if where else key
    return f"{where}['{key}']"


@lru_cache(maxsize=4096)
def parse_path(path: str) -> Sequence[Step]:
    """Return the steps of a path in a resource.

    Examples of paths are ``spec.ports[0].port``, ``containers[name=app]`` and ``labels['a.b/c']``.
    Raises ValueError for a malformed path.
    """
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (path[position] == "." and not position):
            raise ValueError(f"{path!r} is no path: column {position + 1}")
        position = match.end()
        if match["field"]:
            # The prefix distinguishes a field named "key" or "index" from the steps of the kinds
            # "key" and "index".
            steps.append(("=" + match["field"], match["value"]))
        else:
            name = next(key for key in ("key", "quoted", "index", "all") if match[key])
            steps.append(("key" if name == "quoted" else name, match[name]))
    return tuple(steps)
