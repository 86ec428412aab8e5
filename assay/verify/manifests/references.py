"""Rules across documents: each resource, port and key that a resource refers to exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from assay.errors import did_you_mean
from assay.verify.manifests.checks import Rule, RuleCheck
from assay.verify.manifests.resources import (
    TEMPLATES,
    Bundle,
    Pod,
    Resource,
    at,
    find,
    table,
    tables,
)

# A Job's selector is not checked, because the API server sets it.
SELECTING = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")


def selectors(bundle: Bundle) -> Iterator[RuleCheck]:
    """The selector of a workload matches the labels of its own pod template."""
    for each in bundle.of_kind(*SELECTING):
        labels = table(at(each.body, TEMPLATES[each.kind] + ".metadata.labels"))
        wrong = mismatch(table(at(each.body, "spec.selector")), labels)
        yield RuleCheck(
            f"{each.label} spec.selector", wrong and f"{wrong} in the template's labels"
        )


def mismatch(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> str:
    """Return the first requirement of a label selector that labels do not meet, or ""."""
    for key, value in table(selector.get("matchLabels")).items():
        if labels.get(key) != value:
            return f"{key}={value} is not"
    for each in tables(selector.get("matchExpressions")):
        key, operator = str(each.get("key")), each.get("operator")
        values = each.get("values")
        there = isinstance(values, list) and labels.get(key) in values
        # As in Kubernetes, the operator NotIn also holds for an absent label.
        met = {"In": there, "NotIn": not there}
        met |= {"Exists": key in labels, "DoesNotExist": key not in labels}
        if not met.get(str(operator), False):
            return f"{key} {operator} does not hold"
    return ""


def services(bundle: Bundle) -> Iterator[RuleCheck]:
    """The selector of a Service matches a pod, and each targetPort is a port of a matched pod."""
    for service in bundle.of_kind("Service"):
        selector = at(service.body, "spec.selector")
        if not isinstance(selector, dict) or not selector:
            # A Service without a selector has an external name, or its endpoints are set by hand.
            continue
        chosen = [pod for pod in _pods_near(bundle, service) if _selects(table(selector), pod)]
        said = ", ".join(f"{key}={value}" for key, value in selector.items())
        where = f"{service.label} spec.selector"
        yield RuleCheck(where, "" if chosen else f"no pod has the labels {said[:200]}")
        for number, port in enumerate(tables(at(service.body, "spec.ports"))):
            # The API server's default for targetPort is the value of port.
            target = port.get("targetPort", port.get("port"))
            fault = ""
            if chosen and not any(_has_port(pod, target) for pod in chosen):
                known = sorted({str(p) for pod in chosen for p in _ports(pod)})
                fault = (
                    f"no selected pod has the port {target!r}; it has {', '.join(known) or 'none'}"
                )
            yield RuleCheck(f"{service.label} spec.ports[{number}].targetPort", fault)


def _pods_near(bundle: Bundle, resource: Resource) -> Iterator[Pod]:
    return (pod for pod in bundle.pods() if pod.namespace == resource.namespace)


def _selects(selector: Mapping[str, Any], pod: Pod) -> bool:
    return all(pod.labels.get(key) == value for key, value in selector.items())


def _ports(pod: Pod) -> Iterator[Any]:
    """Yield the numbers and names of the ports of a pod's containers."""
    for _, container in pod.containers():
        for port in tables(container.get("ports")):
            yield from (port[key] for key in ("containerPort", "name") if key in port)


def _has_port(pod: Pod, target: Any) -> bool:
    # The number 80 and the text "80" differ, because a text is looked up as the name of a port.
    return any(type(port) is type(target) and port == target for port in _ports(pod))


def ingresses(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each backend of an Ingress is a port of a Service in the Ingress's namespace."""
    for ingress in bundle.of_kind("Ingress"):
        paths = ("spec.rules[*].http.paths[*].backend.service", "spec.defaultBackend.service")
        for where, backend in (one for path in paths for one in find(ingress.body, path)):
            yield RuleCheck(f"{ingress.label} {where}", _backend(bundle, ingress, table(backend)))


def _backend(bundle: Bundle, ingress: Resource, backend: Mapping[str, Any]) -> str:
    name = backend.get("name")
    service = bundle.find("Service", name, ingress.namespace)
    if service is None:
        return "" if f"Service/{name}" in bundle.external else _absent(bundle, "Service", name)
    port = table(backend.get("port"))
    ports = tables(at(service.body, "spec.ports"))
    for key, field in (("number", "port"), ("name", "name")):
        if key in port:
            known = [each.get(field) for each in ports]
            if port[key] in known:
                return ""
            shown = ", ".join(str(one) for one in known if one is not None)
            return f"Service/{name} has no port {port[key]!r}; it has {shown or 'none'}"
    return "port.number or port.name is missing"


def _absent(bundle: Bundle, kind: str, name: Any) -> str:
    names = [each.name for each in bundle.of_kind(kind)]
    return f"no {kind} {str(name)[:60]!r} here; {did_you_mean(str(name), names)}".rstrip("; ")


def configuration(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each ConfigMap and Secret that a pod uses exists and has the used key, unless the reference
    is optional."""
    for pod in bundle.pods():
        for where, kind, reference in _configuration_of(pod):
            if reference.get("optional") is True:
                continue
            # Volumes name a Secret by the key secretName, all other references by the key name.
            name = reference.get("name", reference.get("secretName"))
            keys = [reference.get("key"), *(i.get("key") for i in tables(reference.get("items")))]
            keys = [key for key in keys if isinstance(key, str)]
            yield RuleCheck(where, _held(bundle, pod.namespace, kind, name, keys))


def _configuration_of(pod: Pod) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (location, kind, reference) of each ConfigMap and Secret that a pod uses."""
    sources = {"configMap": "ConfigMap", "secret": "Secret"}
    for place, container in pod.containers():
        for source, kind in sources.items():
            for path in (f"env[*].valueFrom.{source}KeyRef", f"envFrom[*].{source}Ref"):
                for where, reference in find(container, path):
                    yield f"{place}.{where}", kind, table(reference)
    place = f"{pod.owner.label} {pod.path}"
    for source, kind in sources.items():
        for path in (f"volumes[*].{source}", f"volumes[*].projected.sources[*].{source}"):
            for where, reference in find(pod.spec, path):
                yield f"{place}{where}", kind, table(reference)
    for where, reference in find(pod.spec, "imagePullSecrets[*]"):
        yield f"{place}{where}", "Secret", table(reference)


def _held(bundle: Bundle, namespace: str, kind: str, name: Any, keys: list[str]) -> str:
    """Return the fault if a ConfigMap, a Secret or one of its keys does not exist, or ""."""
    if f"{kind}/{name}" in bundle.external:
        return ""
    found = bundle.find(kind, name, namespace)
    if found is None:
        return _absent(bundle, kind, name)
    known = [
        k for part in ("data", "stringData", "binaryData") for k in table(found.body.get(part))
    ]
    for key in keys:
        if key not in known:
            return f"{kind}/{name} has no key {key!r}; {did_you_mean(key, known)}".rstrip("; ")
    return ""


def volumes(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each mount names a volume of its pod, and each persistent volume claim exists."""
    for pod in bundle.pods():
        # A StatefulSet creates a volume for each of its claim templates.
        claims = tables(at(pod.owner.body, "spec.volumeClaimTemplates"))
        names = [volume.get("name") for volume in tables(pod.spec.get("volumes"))]
        names += [at(claim, "metadata.name") for claim in claims]
        known = [name for name in names if isinstance(name, str)]
        for place, container in pod.containers():
            for key in ("volumeMounts", "volumeDevices"):
                for number, mount in enumerate(tables(container.get(key))):
                    name = mount.get("name")
                    fault = f"no volume {name!r}; {did_you_mean(str(name), known)}".rstrip("; ")
                    yield RuleCheck(f"{place}.{key}[{number}]", "" if name in known else fault)
        for where, claim in find(pod.spec, "volumes[*].persistentVolumeClaim.claimName"):
            kind = "PersistentVolumeClaim"
            there = bundle.exists(kind, claim, pod.namespace)
            place = f"{pod.owner.label} {pod.path}{where}"
            yield RuleCheck(place, "" if there else _absent(bundle, kind, claim))


def targets(bundle: Bundle) -> Iterator[RuleCheck]:
    """Autoscalers, budgets, network policies, roles and accounts refer to existing resources."""
    for each in bundle.of_kind("HorizontalPodAutoscaler"):
        yield _refers(bundle, each, "spec.scaleTargetRef")
    for each in bundle.of_kind("RoleBinding", "ClusterRoleBinding"):
        # Every cluster has the roles whose names begin with system:.
        if not str(at(each.body, "roleRef.name")).startswith("system:"):
            yield _refers(bundle, each, "roleRef", "Role", "ClusterRole")
        for number, subject in enumerate(tables(each.body.get("subjects"))):
            if subject.get("kind") == "ServiceAccount":
                home = str(subject.get("namespace") or each.namespace)
                yield _refers(bundle, each, f"subjects[{number}]", "ServiceAccount", namespace=home)
    for pod in bundle.pods():
        account = pod.spec.get("serviceAccountName", "default")
        # The API server creates the account `default` in each namespace.
        if account != "default":
            there = bundle.exists("ServiceAccount", account, pod.namespace)
            place = f"{pod.owner.label} {pod.path}serviceAccountName"
            yield RuleCheck(place, "" if there else _absent(bundle, "ServiceAccount", account))
    for each in bundle.of_kind("StatefulSet"):
        if name := at(each.body, "spec.serviceName"):
            there = bundle.exists("Service", name, each.namespace)
            yield RuleCheck(
                f"{each.label} spec.serviceName", "" if there else _absent(bundle, "Service", name)
            )
    for each in bundle.of_kind("PodDisruptionBudget", "NetworkPolicy"):
        path = "spec.podSelector" if each.kind == "NetworkPolicy" else "spec.selector"
        # In Kubernetes, an empty selector is valid and selects all pods of the namespace.
        selector = table(at(each.body, path))
        if selector:
            chosen = any(not mismatch(selector, pod.labels) for pod in _pods_near(bundle, each))
            yield RuleCheck(f"{each.label} {path}", "" if chosen else "selects no pod")


def _refers(
    bundle: Bundle, owner: Resource, path: str, *kinds: str, namespace: str | None = None
) -> RuleCheck:
    """Check a reference to another resource that is given by kind and name.

    If no ``kinds`` are passed, any kind is accepted.
    """
    reference = table(at(owner.body, path))
    kind, name = str(reference.get("kind")), reference.get("name")
    if kinds and kind not in kinds:
        return RuleCheck(f"{owner.label} {path}", f"{kind[:60]!r} is not {' or '.join(kinds)}")
    home = owner.namespace if namespace is None else namespace
    there = bundle.exists(kind, name, home)
    return RuleCheck(f"{owner.label} {path}", "" if there else _absent(bundle, kind, name))


def namespaces(bundle: Bundle) -> Iterator[RuleCheck]:
    """All resources are in one namespace, or in namespaces that the manifests create."""
    used = [each for each in bundle.resources if each.namespace]
    created = {each.name for each in bundle.of_kind("Namespace")}
    elsewhere = {n.partition("/")[2] for n in bundle.external if n.startswith("Namespace/")}
    free = Counter(each.namespace for each in used if each.namespace not in elsewhere)
    # If the manifests create no namespace, the most common one is assumed to exist.
    known = created or {name for name, _ in free.most_common(1)}
    for each in used:
        fault = f"{each.namespace[:60]!r}; the other manifests are in {', '.join(sorted(known))}"
        there = each.namespace in known | elsewhere
        yield RuleCheck(f"{each.label} metadata.namespace", "" if there else fault)


def unique(bundle: Bundle) -> Iterator[RuleCheck]:
    """No resource of a set, and no container, port or volume of a pod, appears twice."""
    seen: set[Any] = set()
    for each in bundle.resources:
        # The key contains no API version, because two versions of one API group name the same
        # resource.
        key = (each.api_version.rpartition("/")[0], *each.identity)
        yield RuleCheck(each.label, "the resource appears twice" if key in seen else "")
        seen.add(key)
    for pod in bundle.pods():
        place = f"{pod.owner.label} {pod.path}"
        yield RuleCheck(f"{place}containers", _repeated(c.get("name") for _, c in pod.containers()))
        yield RuleCheck(
            f"{place}volumes", _repeated(v.get("name") for v in tables(pod.spec.get("volumes")))
        )
        for where, container in pod.containers():
            for key in ("env", "ports"):
                names = (one.get("name") for one in tables(container.get(key)))
                yield RuleCheck(f"{where}.{key}", _repeated(names))
    for service in bundle.of_kind("Service"):
        ports = tables(at(service.body, "spec.ports"))
        pairs = ((port.get("port"), port.get("protocol", "TCP")) for port in ports)
        fault = _repeated(pairs) or _repeated(port.get("name") for port in ports)
        # The API server requires named ports if a Service has several ports.
        unnamed = len(ports) > 1 and not all("name" in port for port in ports)
        fault = fault or ("several ports need names" if unnamed else "")
        yield RuleCheck(f"{service.label} spec.ports", fault)


def _repeated(names: Iterator[Any]) -> str:
    seen: list[Any] = []
    for name in names:
        if name is not None and name in seen:
            return f"{name!r} appears twice"
        seen.append(name)
    return ""


RULES: dict[str, Rule] = {
    "selectors": selectors,
    "services": services,
    "ingresses": ingresses,
    "configuration": configuration,
    "volumes": volumes,
    "targets": targets,
    "namespaces": namespaces,
    "unique": unique,
}
