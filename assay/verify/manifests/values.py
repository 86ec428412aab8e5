"""Rules for values that the API server checks but the published schemas do not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.errors import did_you_mean
from assay.verify.manifests.checks import Rule, RuleCheck
from assay.verify.manifests.resources import Bundle, at, find, table, tables

# Names follow RFC 1123. Names of Services follow RFC 1035, and names of ports follow IANA's rules.
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
)
_SERVICE = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.{1,15}\Z)(?=.*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
# The number of digits is limited, so that no quantity becomes infinite.
_QUANTITY = re.compile(
    r"([+]?(?:\d{1,18}(?:\.\d{0,9})?|\.\d{1,9}))(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE]\d{1,2})?"
)
_IMAGE = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_CRON_FIELD = re.compile(r"[\d*/,\-A-Za-z?]+")
_SCALES = {
    **{"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
    **{f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", 1)},
}

_PROTOCOLS = ("TCP", "UDP", "SCTP")
# Accepted values of a field, by kind of resource and path.
# The kind "Pod" stands for pods and pod templates.
_CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "Pod": {
        "restartPolicy": ("Always", "OnFailure", "Never"),
        "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        "containers[*].imagePullPolicy": ("Always", "IfNotPresent", "Never"),
        "initContainers[*].imagePullPolicy": ("Always", "IfNotPresent", "Never"),
        "containers[*].ports[*].protocol": _PROTOCOLS,
        "tolerations[*].effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerations[*].operator": ("Exists", "Equal"),
        "volumes[*].emptyDir.medium": ("", "Memory"),
    },
    "Service": {
        "spec.type": ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
        "spec.ports[*].protocol": _PROTOCOLS,
        "spec.sessionAffinity": ("None", "ClientIP"),
        "spec.externalTrafficPolicy": ("Cluster", "Local"),
    },
    "Ingress": {
        "spec.rules[*].http.paths[*].pathType": ("Prefix", "Exact", "ImplementationSpecific"),
    },
    "Deployment": {"spec.strategy.type": ("RollingUpdate", "Recreate")},
    "StatefulSet": {
        "spec.podManagementPolicy": ("OrderedReady", "Parallel"),
        "spec.updateStrategy.type": ("RollingUpdate", "OnDelete"),
    },
    "DaemonSet": {"spec.updateStrategy.type": ("RollingUpdate", "OnDelete")},
    "CronJob": {"spec.concurrencyPolicy": ("Allow", "Forbid", "Replace")},
    "PersistentVolumeClaim": {
        "spec.accessModes[*]": (
            "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod",
        ),
        "spec.volumeMode": ("Filesystem", "Block"),
    },
    "NetworkPolicy": {"spec.policyTypes[*]": ("Ingress", "Egress")},
}  # fmt: skip
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
# Accepted restart policies of the kinds that do not accept all three policies.
_RESTARTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), ("Always",)),
    **dict.fromkeys(("Job", "CronJob"), ("OnFailure", "Never")),
}


def quantity(value: Any) -> float | None:
    """Return the number that a quantity such as ``500m``, ``1.5Gi`` or 2 states.

    None: no quantity.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    # In YAML, 2 is an integer and 500m is text. Both are quantities.
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    suffix = match[2] or ""
    scale = _SCALES[suffix] if suffix in _SCALES else 10.0 ** int(suffix[1:])
    return float(match[1]) * scale


def names(bundle: Bundle) -> Iterator[RuleCheck]:
    """Names of resources and ports, and label values, have the form that the API accepts."""
    for each in bundle.resources:
        form = _SERVICE if each.kind == "Service" else _SUBDOMAIN
        # The names of RBAC roles may contain any character of a URL path segment, such as a colon.
        fits = "rbac.authorization.k8s.io" in each.api_version or form.fullmatch(each.name)
        yield RuleCheck(
            f"{each.label} metadata.name", "" if fits else f"{each.name[:70]!r} is no name"
        )
        if each.namespace and not _LABEL.fullmatch(each.namespace):
            yield RuleCheck(
                f"{each.label} metadata.namespace", f"{each.namespace[:70]!r} is no name"
            )
        for path in (
            "metadata.labels",
            "spec.template.metadata.labels",
            "spec.selector.matchLabels",
        ):
            for key, value in table(at(each.body, path)).items():
                fits = isinstance(value, str) and _LABEL_VALUE.fullmatch(value)
                fault = f"the label {key[:40]}: {str(value)[:70]!r} is no label value"
                yield RuleCheck(f"{each.label} {path}", "" if fits else fault)
    for pod in bundle.pods():
        for where, container in pod.containers():
            name = str(container.get("name"))
            yield RuleCheck(
                f"{where}.name", "" if _LABEL.fullmatch(name) else f"{name[:70]!r} is no name"
            )
            for port in tables(container.get("ports")):
                if isinstance(name := port.get("name"), str):
                    fault = f"{name[:40]!r}: at most 15 of a-z, 0-9 and -"
                    yield RuleCheck(f"{where}.ports", "" if _PORT_NAME.fullmatch(name) else fault)


def choices(bundle: Bundle) -> Iterator[RuleCheck]:
    """A field with a fixed set of accepted values has one of these values."""
    for each in bundle.resources:
        for path, accepted in _CHOICES.get(each.kind, {}).items():
            for where, value in find(each.body, path):
                yield _chosen(f"{each.label} {where}", value, accepted)
    for pod in bundle.pods():
        place = f"{pod.owner.label} {pod.path}"
        for path, accepted in _CHOICES["Pod"].items():
            for where, value in find(pod.spec, path):
                yield _chosen(place + where, value, accepted)
        if accepted := _RESTARTS.get(pod.owner.kind):
            # The API server's default is Always, which a Job does not accept.
            value = pod.spec.get("restartPolicy", "Always")
            yield _chosen(f"{place}restartPolicy", value, accepted)


def _chosen(where: str, value: Any, accepted: tuple[str, ...]) -> RuleCheck:
    if value in accepted:
        return RuleCheck(where)
    meant = did_you_mean(str(value), accepted)
    said = meant or f"accepted: {', '.join(accepted)}"
    return RuleCheck(where, f"found {str(value)[:60]!r}; {said}")


def numbers(bundle: Bundle) -> Iterator[RuleCheck]:
    """Ports and replicas are in their ranges, and schedules have five fields or are a macro."""
    ports = [("Service", "spec.ports[*].port"), ("Service", "spec.ports[*].targetPort")]
    for kind, path in (*ports, ("Service", "spec.ports[*].nodePort")):
        # Kubernetes' default range of node ports.
        # A cluster can be configured with another range of node ports.
        low, high = (30000, 32767) if path.endswith("nodePort") else (1, 65535)
        for each in bundle.of_kind(kind):
            for where, value in find(each.body, path):
                if isinstance(value, int):
                    yield _within(f"{each.label} {where}", value, low, high)
    for pod in bundle.pods():
        for place, container in pod.containers():
            for where, value in find(container, "ports[*].containerPort"):
                if isinstance(value, int):
                    yield _within(f"{place}.{where}", value, 1, 65535)
        for where, value in find(pod.owner.body, "spec.replicas"):
            if isinstance(value, int):
                yield _within(f"{pod.owner.label} {where}", value, 0, 100_000)
    for each in bundle.of_kind("HorizontalPodAutoscaler"):
        low, high = at(each.body, "spec.minReplicas"), at(each.body, "spec.maxReplicas")
        if isinstance(low, int) and isinstance(high, int):
            fault = "" if 0 < low <= high else f"minReplicas {low}, maxReplicas {high}"
            yield RuleCheck(f"{each.label} spec", fault)
    for each in bundle.of_kind("CronJob"):
        fields = str(at(each.body, "spec.schedule")).split()
        macro = len(fields) == 1 and fields[0] in (
            "@hourly",
            "@daily",
            "@weekly",
            "@monthly",
            "@yearly",
        )
        fits = macro or (len(fields) == 5 and all(map(_CRON_FIELD.fullmatch, fields)))
        yield RuleCheck(
            f"{each.label} spec.schedule", "" if fits else "not five fields of a schedule"
        )


def _within(where: str, value: int, low: int, high: int) -> RuleCheck:
    return RuleCheck(
        where, "" if low <= value <= high else f"found {value}; accepted: {low} to {high}"
    )


def amounts(bundle: Bundle) -> Iterator[RuleCheck]:
    """Amounts of CPU, memory and storage are quantities, and no request exceeds its limit."""
    for each in bundle.resources:
        for path in (
            "spec.resources.requests",
            "spec.volumeClaimTemplates[*].spec.resources.requests",
        ):
            for where, requests in find(each.body, path):
                yield from _quantities(f"{each.label} {where}", table(requests))
        if each.kind == "PersistentVolume":
            yield from _quantities(
                f"{each.label} spec.capacity", table(at(each.body, "spec.capacity"))
            )
    for pod in bundle.pods():
        for where, container in pod.containers():
            requests = table(at(container, "resources.requests"))
            limits = table(at(container, "resources.limits"))
            yield from _quantities(f"{where}.resources.requests", requests)
            yield from _quantities(f"{where}.resources.limits", limits)
            for key in requests.keys() & limits.keys():
                low, high = quantity(requests[key]), quantity(limits[key])
                if low is not None and high is not None:
                    fault = f"the request {requests[key]} is above the limit {limits[key]}"
                    yield RuleCheck(f"{where}.resources.{key}", fault if low > high else "")


def _quantities(where: str, amounts: Mapping[str, Any]) -> Iterator[RuleCheck]:
    for key, value in amounts.items():
        fault = f"{str(value)[:40]!r} is no quantity, such as 500m or 1Gi"
        yield RuleCheck(f"{where}.{key[:60]}", "" if quantity(value) is not None else fault)


def containers(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each container has an image, each probe one handler, and each volume one source."""
    for pod in bundle.pods():
        place = f"{pod.owner.label} {pod.path}"
        for number, volume in enumerate(tables(pod.spec.get("volumes"))):
            count = len(volume.keys() - {"name"})
            fault = f"{count} sources; accepted: one" if count != 1 else ""
            yield RuleCheck(f"{place}volumes[{number}]", fault)
        for where, container in pod.containers():
            image = container.get("image")
            fits = isinstance(image, str) and _IMAGE.fullmatch(image)
            yield RuleCheck(f"{where}.image", "" if fits else f"{str(image)[:60]!r} is no image")
            for each in tables(container.get("env")):
                if "value" in each and "valueFrom" in each:
                    yield RuleCheck(f"{where}.env", f"{each.get('name')!r} has value and valueFrom")
            yield from _probes(where, container)


def _probes(where: str, container: Mapping[str, Any]) -> Iterator[RuleCheck]:
    ports = tables(container.get("ports"))
    known = [port.get("name") for port in ports]
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if not isinstance(container.get(name), dict):
            continue
        probe = table(container[name])
        handlers = [key for key in _HANDLERS if key in probe]
        fault = "" if len(handlers) == 1 else f"accepted: one of {', '.join(_HANDLERS)}"
        port = at(probe, f"{handlers[0]}.port") if handlers else None
        # A numeric port of a probe needs no entry in the container's ports.
        if isinstance(port, str) and port not in known:
            fault = f"the container has no port {port!r}"
        yield RuleCheck(f"{where}.{name}", fault)


RULES: dict[str, Rule] = {
    "names": names,
    "choices": choices,
    "numbers": numbers,
    "amounts": amounts,
    "containers": containers,
}
