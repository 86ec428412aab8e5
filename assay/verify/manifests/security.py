"""Security rules, after the profile *restricted* of the Pod Security Standards.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from assay.verify.manifests.checks import Rule, RuleCheck
from assay.verify.manifests.resources import Bundle, Pod, at, find, tables
from assay.verify.manifests.values import quantity

CAPABILITY = "NET_BIND_SERVICE"
"""The only capability that the profile lets a container add."""


def limits(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each container has requests and limits above zero for CPU and memory."""
    for pod in bundle.pods():
        for where, container in pod.containers():
            for key in ("requests.cpu", "requests.memory", "limits.cpu", "limits.memory"):
                there = quantity(at(container, f"resources.{key}"))
                yield RuleCheck(f"{where}.resources.{key}", "" if there else "is missing")


def privileged(bundle: Bundle) -> Iterator[RuleCheck]:
    """No container is privileged or may gain privileges."""
    for pod in bundle.pods():
        for where, container in pod.containers():
            place = f"{where}.securityContext"
            wrong = at(container, "securityContext.privileged") is True
            yield RuleCheck(f"{place}.privileged", "is true" if wrong else "")
            allowed = at(container, "securityContext.allowPrivilegeEscalation")
            # The API server allows privilege escalation by default, so an absent field is a fault.
            fault = "" if allowed is False else "is not false"
            yield RuleCheck(f"{place}.allowPrivilegeEscalation", fault)


def host_access(bundle: Bundle) -> Iterator[RuleCheck]:
    """No pod uses paths, ports or namespaces of its host."""
    for pod in bundle.pods():
        place = f"{pod.owner.label} {pod.path}"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            yield RuleCheck(place + key, "is true" if pod.spec.get(key) is True else "")
        for number, volume in enumerate(tables(pod.spec.get("volumes"))):
            fault = "a path of the host" if "hostPath" in volume else ""
            yield RuleCheck(f"{place}volumes[{number}]", fault)
        for where, container in pod.containers():
            for path, port in find(container, "ports[*].hostPort"):
                yield RuleCheck(f"{where}.{path}", "a port of the host" if port else "")


def root(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each container runs as a user that is not root."""
    for pod in bundle.pods():
        for where, container in pod.containers():
            place = f"{where}.securityContext"
            required = _inherited(pod, container, "runAsNonRoot")
            yield RuleCheck(f"{place}.runAsNonRoot", "" if required is True else "is not true")
            user = _inherited(pod, container, "runAsUser")
            # The exact types of values are compared, because False == 0 in Python.
            # A value of a wrong type is reported by the schema check, not by the security rule.
            yield RuleCheck(f"{place}.runAsUser", "is 0" if type(user) is int and user == 0 else "")


def _inherited(pod: Pod, container: Any, key: str) -> Any:
    """Return a container's setting.

    A container without a security setting inherits the setting of its pod.
    """
    own = at(container, f"securityContext.{key}")
    return at(pod.spec, f"securityContext.{key}") if own is None else own


def capabilities(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each container drops all Linux capabilities, and adds none but NET_BIND_SERVICE."""
    for pod in bundle.pods():
        for where, container in pod.containers():
            place = f"{where}.securityContext.capabilities"
            added = _words(at(container, "securityContext.capabilities.add"))
            extra = [name for name in added if name != CAPABILITY]
            yield RuleCheck(f"{place}.add", f"adds {extra[0][:40]}" if extra else "")
            dropped = _words(at(container, "securityContext.capabilities.drop"))
            yield RuleCheck(f"{place}.drop", "" if "ALL" in dropped else "does not drop ALL")


def _words(value: Any) -> list[str]:
    return [str(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []


def images(bundle: Bundle) -> Iterator[RuleCheck]:
    """Each image has a tag that is not ``latest``, or a digest."""
    for pod in bundle.pods():
        for where, container in pod.containers():
            image = str(container.get("image") or "")
            name, _, digest = image.partition("@")
            # A tag follows the last slash, because host:5000/app has a port but no tag.
            tag = name.rpartition("/")[2].partition(":")[2]
            fixed = bool(digest) or tag not in ("", "latest")
            yield RuleCheck(f"{where}.image", "" if fixed else f"{image[:60]!r} has no fixed tag")


RULES: dict[str, Rule] = {
    "limits": limits,
    "privileged": privileged,
    "host_access": host_access,
    "root": root,
    "capabilities": capabilities,
    "images": images,
}
