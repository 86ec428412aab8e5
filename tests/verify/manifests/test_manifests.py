"""The verdict on manifests: what a row asks for, partial credit, labelled rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.manifests import manifests
from assay.verify.manifests.manifests import (
    GROUPS,
    MANIFESTS,
    RULES,
    find_yaml,
    judge_manifests,
    read_documents,
    read_manifest_spec,
    review,
)
from assay.verify.manifests.resources import Resource
from assay.verify.manifests.schemas import schema_faults, versions
from assay.verify.selftest import labelled_pair, labelled_rows

GOOD = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: nginx:1.27
        ports: [{containerPort: 8080, name: http}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
"""
BROKEN = GOOD.replace("selector: {app: web}", "selector: {app: wbe}")
REPAIR = {"keep": BROKEN, "may_change": ["Service/web spec.selector.app"]}


def judge(text: str, **spec: Any) -> Part:
    return judge_manifests(Problem("p", "Repair it.", spec), Completion.from_text(text))


def ask(**requirement: Any) -> Part:
    return judge(GOOD, require=[requirement])


ROWS = list(labelled_rows("manifests"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_labelled_row(row: dict[str, Any]) -> None:
    part = judge_manifests(*labelled_pair("manifests", row))
    assert part.passed is (row["expected"] == "passed") and part.value is not None, part
    assert part.value == float(part.passed)


def test_labelled_set_is_large_enough() -> None:
    kinds = [row["kind"] for row in ROWS]
    assert len(ROWS) >= 60 and kinds.count("hack") >= 20 and kinds.count("odd_style") >= 10
    assert len({row["id"] for row in ROWS}) == len(ROWS)


def test_known_errors() -> None:
    assert len(MANIFESTS.known_errors) >= 5
    for known in MANIFESTS.known_errors:
        completion = Completion.from_text(known.completion, think=ThinkFormat("free"))
        part = judge_manifests(Problem("p", "q", known.spec), completion)
        assert ("passed" if part.passed else "failed") == known.says != known.should_say, known.what


def test_fields_accept_their_defaults() -> None:
    for field in MANIFESTS.fields:
        assert field.check is not None and field.check(field.default), field.name


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({}, "require: found missing; accepted: require or keep"),
        ({"rules": ["security"]}, "require: found missing"),
        ({"keep": "a: ["}, "keep: found line"),
        ({"keep": "a: 1"}, "keep: found apiVersion is missing"),
        ({"keep": "# nothing"}, "keep: found no document"),
        ({"require": [{"resource": "Service"}]}, "require: found"),
        ({"require": [{"resource": "Service/a", "path": "spec", "equal": 1}]}, "require: found"),
        ({"require": [{"resource": "Service/a", "path": "spec..x", "equals": 1}]}, "require"),
        ({"require": [{"resource": "Service/a", "path": "a", "matches": "("}]}, "require: found"),
        ({"require": [{"resource": "Service/a", "path": "a", "at_least": "x"}]}, "require: found"),
        ({"require": [{"resource": "Service/a"}], "may_add": ["A/b"]}, "keep: found missing"),
        ({**REPAIR, "may_change": ["Service/wbe spec"]}, "may_change: found 'Service/wbe spec'"),
        ({**REPAIR, "may_change": ["Service/web"]}, "may_change: found"),
        ({**REPAIR, "rules": ["securty"]}, "rules: found"),
        ({**REPAIR, "weights": {"keeps": 1}}, "weights: found"),
        ({**REPAIR, "kubernetes": "1.9"}, "kubernetes: found '1.9'; accepted: 1.25"),
        ({**REPAIR, "credit": "some"}, "credit: found 'some'"),
    ],
)
def test_a_malformed_spec_is_one_line_that_names_the_key(
    spec: Mapping[str, Any], fault: str
) -> None:
    assert MANIFESTS.check_spec is not None
    with pytest.raises(VerifierError) as caught:
        MANIFESTS.check_spec(spec)
    assert str(caught.value).startswith(fault) and "\n" not in str(caught.value)


def test_requirements_read_values_at_paths() -> None:
    image = {"resource": "Deployment/web", "path": "spec.template.spec.containers[name=web].image"}
    assert ask(**image, equals="nginx:1.27").passed
    assert ask(**image, matches="nginx:.*").passed
    assert not ask(**image, matches="nginx").passed
    assert ask(**image, one_of=["a", "nginx:1.27"]).passed
    assert not ask(**image, exists=False).passed
    replicas = {"resource": "Deployment/web", "path": "spec.replicas"}
    assert ask(**replicas, at_least=2).passed and not ask(**replicas, at_least=3).passed
    assert ask(**replicas, at_most="2000m").passed and not ask(**replicas, at_most=1).passed
    assert not ask(**replicas, equals=True).passed and not ask(**replicas, equals="2").passed
    ports = {"resource": "Service/web", "path": "spec.ports[*].port"}
    assert ask(**ports, equals=80).passed
    assert not ask(resource="Service/web", path="spec.ports[1].port", equals=80).passed
    assert ask(resource="Service/web", path="spec.type", exists=False).passed
    assert not ask(resource="Service/web", namespace="other").passed


def test_a_requirement_never_shows_what_it_expects() -> None:
    part = ask(resource="Service/web", path="spec.type", equals="LoadBalancer")
    assert "Service/web spec.type" in part.detail and "LoadBalancer" not in part.detail


def test_a_pattern_that_backtracks_is_not_met() -> None:
    path = "spec.template.spec.containers[*].image"
    text = GOOD.replace("nginx:1.27", "a" * 60 + ":1")
    row = {"resource": "Deployment/web", "path": path, "matches": "(a|a)*b"}
    assert judge(text, require=[row]).passed is False


def test_weighted_credit_grows_with_the_repair() -> None:
    weighted = {**REPAIR, "credit": "weighted"}
    unchanged, repaired = judge(BROKEN, **weighted), judge(GOOD, **weighted)
    worse = judge(BROKEN.replace("targetPort: http", "targetPort: htp"), **weighted)
    assert repaired.value == 1.0
    assert 0.0 < (worse.value or 0.0) < (unchanged.value or 0.0) < 1.0


def test_the_original_earns_nothing_with_weighted_credit() -> None:
    faults = BROKEN.replace("replicas: 2", "replica: 2")
    spec = {
        "keep": GOOD,
        "may_change": ["Service/web spec.selector.app"],
        "credit": "weighted",
        "original": faults,
    }
    half = judge(BROKEN, **spec).value
    assert judge(faults, **spec).value == 0.0 and judge(GOOD, **spec).value == 1.0
    assert half is not None and 0.0 < half < 1.0


@pytest.mark.parametrize(
    "text", ["", "# nothing", "{}", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}"]
)
def test_weighted_credit_pays_nothing_without_the_resources(text: str) -> None:
    assert judge(text, **REPAIR, credit="weighted").value == 0.0


def test_weights_of_the_row_decide() -> None:
    wrong = GOOD.replace("replicas: 2", "replicas: 3")
    zero = dict.fromkeys(("schema", "unknown_keys", *RULES), 0.0)
    spec = {**REPAIR, "credit": "weighted"}
    assert judge(wrong, **spec, weights=zero).value == 0.5
    assert (judge(wrong, **spec, weights={"keep": 0}).value or 0.0) == 1.0
    assert judge(wrong, **spec, weights={"keep": 0}).passed is False


def test_every_rule_of_the_row_is_a_component() -> None:
    part = judge(GOOD, **REPAIR, rules=[*GROUPS])
    applied = {"selectors", "services", "names", "limits", "privileged", "root", "images"}
    assert applied <= part.components.keys() and part.components["images"] == 1.0
    assert part.components["limits"] == 0.0 and part.components["yaml"] == 1.0
    only = judge(GOOD, **REPAIR, rules=["images"])
    assert only.components.keys() & RULES.keys() == {"images"}


def test_external_resources_exist() -> None:
    text = GOOD.replace(
        "image: nginx:1.27\n", "image: nginx:1.27\n        envFrom: [{secretRef: {name: s}}]\n"
    )
    assert judge(text, keep=text).components["configuration"] == 0.0
    assert judge(text, keep=text, external=["Secret/s"]).passed


def test_a_removed_value_is_no_change() -> None:
    gone = BROKEN.replace("  selector: {app: wbe}\n", "")
    spec = {"keep": BROKEN, "rules": ["values"]}
    assert not judge(gone, **spec, may_change=["Service/web spec.selector"]).passed
    assert judge(gone, **spec, may_remove=["Service/web spec.selector"]).passed
    added = BROKEN.replace("replicas: 2", "replicas: 2\n  paused: true")
    assert not judge(added, **spec).passed
    assert judge(added, **spec, may_change=["Deployment/web spec.paused"]).passed


def test_a_resource_may_be_added_by_name_only() -> None:
    text = GOOD + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
    assert not judge(text, keep=GOOD).passed
    assert judge(text, keep=GOOD, may_add=["ConfigMap/a"]).passed


def test_the_version_of_the_api_is_the_rows() -> None:
    text = "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: a}\n"
    text += "spec: {schedule: '* * * * *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: 'a:1'}]}}}}}\n"
    row = {"require": [{"resource": "CronJob/a"}]}
    part = judge(text, **row)
    assert not part.passed and "accepted: batch/v1" in part.detail
    assert judge(text.replace("v1beta1", "v1"), **row, kubernetes="1.25").passed


def test_without_the_package_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "installed", lambda: False)
    part = judge(GOOD, **REPAIR)
    assert part.value is None and part.reason == "unavailable" and "pip install" in part.detail
    assert MANIFESTS.lacks is not None and "pip install" in MANIFESTS.lacks({})


def test_a_review_lists_each_fault_once() -> None:
    spec = read_manifest_spec(Problem("p", "q", REPAIR))
    text = GOOD.replace("image:", "imgae:")
    faults = review(spec, *read_documents(spec, text)).faults()
    assert any("did you mean image?" in each for each in faults)
    assert len(faults) == len(set(faults))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1", "a: 1"),
        ("x\n```yaml\na: 1\n```\ny", "a: 1\n"),
        ("```yaml\na: 1\n```\n```\nok\n```", "a: 1\n"),
        ("```\na: 1\n```\n```bash\nls\n```", "a: 1\n"),
        ("~~~k8s\na: 1\n~~~", "a: 1\n"),
        ("```python\na\n```", None),
        ("  ", None),
    ],
)
def test_yaml_is_found(text: str, found: str | None) -> None:
    assert find_yaml(text) == found


CHANGED = {**REPAIR, "original": BROKEN, "form": "changes"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Service/web spec.selector.app: web", ""),
        ("```yaml\nService/web spec.selector.app: web\n```", ""),
        ("Service/web spec.selector: {app: web}", ""),
        ("Service/web spec.selector.app: wbe", "no pod has the labels"),
        ("Service/web spec.selector.app: null", "spec.selector.app must not change"),
        ("Service/web spec.selector.app: web\nDeployment/web spec.replicas: 3", "must not change"),
        ("Service/web spec.ports[1].port: 80", "no single place"),
        ("Service/web spec.ports[*].x.y: 80", "spec.ports[0].x"),
        ("Service/web spec.ports[name=a].port: 80", "no single place"),
        ("Service/web spec.ports.port: 80", "no single place"),
        ("Service/wbe spec.selector.app: web", "0 resources are 'Service/wbe'"),
        ("Service/web spec..x: 1", "is no path"),
        ("Service/web: 1", "accepted: Kind/name path"),
        ("spec.selector.app: web", "0 resources"),
        ("- a", "accepted: one mapping"),
        ("a: 1\n---\nb: 1", "accepted: one mapping"),
        (GOOD, "accepted: one mapping"),
        ("", "no YAML"),
    ],
)
def test_changes_are_applied_to_the_original(text: str, fault: str) -> None:
    part = judge(text, **CHANGED)
    assert part.passed is (not fault) and fault in part.detail, part.detail


def test_changes_add_and_remove_values() -> None:
    row = {"original": GOOD, "form": "changes", "rules": ["images"]}
    ports = {"resource": "Service/web", "path": "spec.ports[1].port", "equals": 443}
    assert judge("Service/web spec.ports[1]: {port: 443, name: s}", **row, require=[ports]).passed
    label = {"resource": "Service/web", "path": "metadata.labels['a.b/c']", "equals": "d"}
    assert judge("Service/web metadata.labels['a.b/c']: d", **row, require=[label]).passed
    gone = {"resource": "Deployment/web", "path": "spec.replicas", "exists": False}
    assert judge("Deployment/web spec.replicas: null", **row, require=[gone]).passed
    item = {"resource": "Service/web", "path": "spec.ports[0]", "exists": False}
    assert judge("Service/web spec.ports[0]: null", **row, require=[item]).passed


def test_changes_leave_the_original_of_other_completions_alone() -> None:
    assert judge("Service/web spec.selector.app: web", **CHANGED).passed
    assert not judge("Service/web spec.selector.tier: web", **CHANGED).passed
    assert judge("Service/web spec.selector.app: web", **CHANGED).passed


def test_changes_need_an_original() -> None:
    with pytest.raises(VerifierError, match="original: found missing; accepted: the manifests"):
        judge("a: 1", **REPAIR, form="changes")


def test_every_missing_key_is_named() -> None:
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {}}
    resource = Resource("apps/v1", "Deployment", "default", "web", body)
    found = {words for _, _, words in schema_faults(resource, versions()[-1])}
    assert {"selector is missing", "template is missing"} <= found
