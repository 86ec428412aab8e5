"""Each rule: a set of manifests that holds it, and changes of one line that break it."""

from __future__ import annotations

import pytest

from assay.types import Problem
from assay.verify.manifests.manifests import (
    RULES,
    Review,
    read_documents,
    read_manifest_spec,
    review,
)
from assay.verify.manifests.resources import find, parse_path
from assay.verify.manifests.values import quantity

GOOD = """apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {mode: fast}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: shop}
stringData: {token: abc}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk, namespace: shop}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner, namespace: shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: shop}
rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: runner, namespace: shop}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  strategy: {type: RollingUpdate}
  selector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: In, values: [front]}]}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec:
      serviceAccountName: runner
      restartPolicy: Always
      securityContext: {runAsNonRoot: true}
      containers:
      - name: web
        image: nginx:1.27
        imagePullPolicy: IfNotPresent
        ports: [{containerPort: 8080, name: http, protocol: TCP}]
        env: [{name: MODE, valueFrom: {configMapKeyRef: {name: settings, key: mode}}}]
        envFrom: [{secretRef: {name: key}}]
        volumeMounts: [{name: data, mountPath: /data}, {name: conf, mountPath: /conf}]
        readinessProbe: {httpGet: {path: /, port: http}}
        resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: disk}}
      - {name: conf, configMap: {name: settings, items: [{key: mode, path: mode}]}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: http, nodePort: 30080, name: http}, {port: 81, targetPort: 8080, name: other}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec:
  defaultBackend: {service: {name: web, port: {name: other}}}
  rules: [{http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop}
spec: {minReplicas: 1, maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: shop}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
spec:
  schedule: "0 3 * * *"
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: OnFailure
          containers:
          - name: nightly
            image: registry.example.com:5000/team/job@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
            resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}
            securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, capabilities: {drop: [ALL]}}
"""
SPEC = read_manifest_spec(
    Problem("p", "q", {"require": [{"resource": "Service/web"}], "rules": ["references", "values", "security"]})
)  # fmt: skip


def reviewed(text: str) -> Review:
    return review(SPEC, *read_documents(SPEC, text))


def faults(text: str) -> dict[str, list[str]]:
    found = reviewed(text)
    assert not found.fault, found.fault
    return {
        name: [f"{one.where}: {one.fault}" for one in checks if one.fault]
        for name, checks in found.checks.items()
        if any(one.fault for one in checks)
    }


def test_good_manifests_hold_every_rule_and_every_rule_looks_at_them() -> None:
    assert faults(GOOD) == {}
    found = reviewed(GOOD)
    assert (
        found.passed and {name for name, checks in found.checks.items() if checks} >= RULES.keys()
    )


BREAKS = [
    ("schema", "replicas: 2", "replicas: two", "accepted: a whole number"),
    ("schema", "apiVersion: policy/v1", "apiVersion: policy/v1beta1", "accepted: policy/v1"),
    ("schema", "kind: Ingress", "kind: Ingres", "did you mean Ingress?"),
    ("unknown_keys", "readinessProbe", "readynessProbe", "did you mean readinessProbe?"),
    ("unknown_keys", "maxReplicas: 3", "maxReplicas: 3, zzz: 1", "zzz: unknown key"),
    ("selectors", "matchLabels: {app: web}, ", "matchLabels: {app: site}, ", "app=site is not"),
    ("selectors", "values: [front]", "values: [back]", "tier In does not hold"),
    ("selectors", "operator: In, values: [front]", "operator: DoesNotExist", "does not hold"),
    ("services", "  selector: {app: web}\n", "  selector: {app: wbe}\n", "no pod has the labels"),
    ("services", "targetPort: 8080", "targetPort: 8081", "no selected pod has the port 8081"),
    ("services", "targetPort: http,", "targetPort: htp,", "it has 8080, http"),
    ("ingresses", "service: {name: web, port: {number", "service: {name: wbe, port: {number", "did you mean web?"),
    ("ingresses", "port: {number: 80}", "port: {number: 8080}", "it has 80, 81"),
    ("ingresses", "port: {name: other}", "port: {name: https}", "it has http, other"),
    ("configuration", "configMapKeyRef: {name: settings", "configMapKeyRef: {name: setings", "did you mean settings?"),
    ("configuration", "key: mode}}", "key: mod}}", "did you mean mode?"),
    ("configuration", "secretRef: {name: key}", "secretRef: {name: keys}", "no Secret"),
    ("configuration", "items: [{key: mode", "items: [{key: mood", "has no key 'mood'"),
    ("volumes", "volumeMounts: [{name: data", "volumeMounts: [{name: dta", "did you mean data?"),
    ("volumes", "claimName: disk", "claimName: dsk", "did you mean disk?"),
    ("targets", "kind: Deployment, name: web", "kind: StatefulSet, name: web", "no StatefulSet"),
    ("targets", "kind: Role, name: reader", "kind: Role, name: writer", "no Role"),
    ("targets", "kind: ServiceAccount, name: runner", "kind: ServiceAccount, name: runer", "did you mean runner?"),
    ("targets", "serviceAccountName: runner", "serviceAccountName: other", "no ServiceAccount"),
    ("targets", "minAvailable: 1, selector: {matchLabels: {app: web}}", "minAvailable: 1, selector: {matchLabels: {app: a}}", "selects no pod"),
    ("namespaces", "{name: nightly, namespace: shop}", "{name: nightly, namespace: other}", "'other'"),
    ("namespaces", "{name: nightly, namespace: shop}", "{name: nightly}", "'default'"),
    ("unique", "{name: nightly, namespace: shop}\nspec", "{name: nightly, namespace: shop}\n---\napiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly, namespace: shop}\nspec", "twice"),
    ("unique", "{name: conf, configMap", "{name: data, configMap", "'data' appears twice"),
    ("unique", "port: 81", "port: 80", "appears twice"),
    ("unique", ", name: other}", "}", "need names"),
    ("names", "kind: Ingress\nmetadata: {name: web", "kind: Ingress\nmetadata: {name: Web_1", "is no name"),
    ("names", "labels: {app: web, tier: front}", "labels: {app: web, tier: front, x: 'a b'}", "no label value"),
    ("names", "name: http, protocol", "name: a-very-long-port-name, protocol", "at most 15"),
    ("choices", "imagePullPolicy: IfNotPresent", "imagePullPolicy: ifnotpresent", "did you mean IfNotPresent?"),
    ("choices", "protocol: TCP", "protocol: HTTP", "'HTTP'"),
    ("choices", "type: NodePort", "type: Nodeport", "did you mean NodePort?"),
    ("choices", "restartPolicy: Always", "restartPolicy: Never", "accepted: Always"),
    ("choices", "restartPolicy: OnFailure", "restartPolicy: Always", "OnFailure, Never"),
    ("choices", "pathType: Prefix", "pathType: prefix", "did you mean Prefix?"),
    ("choices", "accessModes: [ReadWriteOnce]", "accessModes: [RWO]", "'RWO'"),
    ("numbers", "port: 81", "port: 81000", "accepted: 1 to 65535"),
    ("numbers", "nodePort: 30080", "nodePort: 80", "accepted: 30000 to 32767"),
    ("numbers", "replicas: 2", "replicas: -1", "accepted: 0 to"),
    ("numbers", "minReplicas: 1", "minReplicas: 4", "minReplicas 4"),
    ("numbers", "0 3 * * *", "0 3 * *", "not five fields"),
    ("amounts", "storage: 1Gi", "storage: 1GB", "is no quantity"),
    ("amounts", "limits: {cpu: 200m, memory: 128Mi}}\n        security", "limits: {cpu: 50m, memory: 128Mi}}\n        security", "above the limit"),
    ("containers", "image: nginx:1.27", "image: 'nginx: 1.27'", "is no image"),
    ("containers", "httpGet: {path: /, port: http}", "httpGet: {path: /, port: htp}", "no port 'htp'"),
    ("containers", "httpGet: {path: /, port: http}", "periodSeconds: 3", "accepted: one of"),
    ("containers", "{name: data, persistentVolumeClaim: {claimName: disk}}", "{name: data}", "0 sources"),
    ("limits", ", limits: {cpu: 200m, memory: 128Mi}}\n        security", "}\n        security", "is missing"),
    ("privileged", "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add", "securityContext: {privileged: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add", "is true"),
    ("privileged", "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add", "securityContext: {capabilities: {drop: [ALL], add", "is not false"),
    ("host_access", "serviceAccountName: runner\n", "serviceAccountName: runner\n      hostNetwork: true\n", "is true"),
    ("host_access", "persistentVolumeClaim: {claimName: disk}", "hostPath: {path: /}", "a path of the host"),
    ("host_access", "{containerPort: 8080,", "{containerPort: 8080, hostPort: 80,", "a port of the host"),
    ("root", "securityContext: {runAsNonRoot: true}", "securityContext: {runAsUser: 1}", "is not true"),
    ("root", "securityContext: {runAsNonRoot: true}", "securityContext: {runAsNonRoot: true, runAsUser: 0}", "is 0"),
    ("capabilities", "add: [NET_BIND_SERVICE]", "add: [NET_ADMIN]", "adds NET_ADMIN"),
    ("capabilities", "drop: [ALL], ", "drop: [NET_RAW], ", "does not drop ALL"),
    ("images", "image: nginx:1.27", "image: nginx", "no fixed tag"),
    ("images", "image: nginx:1.27", "image: registry:5000/nginx", "no fixed tag"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "before", "after", "fault"), BREAKS, ids=[f"{b[0]}-{n}" for n, b in enumerate(BREAKS)]
)
def test_one_wrong_line_breaks_its_rule(rule: str, before: str, after: str, fault: str) -> None:
    assert before in GOOD
    found = faults(GOOD.replace(before, after, 1))
    assert any(fault in each for each in found.get(rule, [])), found


def test_every_rule_is_broken_by_a_line() -> None:
    assert {rule for rule, *_ in BREAKS} >= RULES.keys()


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: [1]\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: [x]}\nspec: {containers: {a: 1}, volumes: 3}\n",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {template: x, selector: [1]}\n",
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selector: {a: [1]}, ports: [1, {port: {}}]}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: [1], env: [{name: {}}], ports: [{name: [], containerPort: x}], resources: {limits: [1]}}]}\n",
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\nspec: {rules: [{http: {paths: [{backend: {service: 1}}]}}]}\n",
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\nspec: {schedule: [], jobTemplate: 1}\n",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {selector: {matchExpressions: [{key: [], operator: [], values: {}}]}}\n",
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: a}\nroleRef: 1\nsubjects: [{kind: ServiceAccount, name: [1], namespace: {}}]\n",
    ],
)  # fmt: skip
def test_values_of_any_type_are_faults_and_never_errors(text: str) -> None:
    assert not reviewed(text).passed


def test_quantities_are_numbers() -> None:
    same = {"500m": 0.5, "1Gi": 2.0**30, "2k": 2000.0, 3: 3.0, 0.5: 0.5, "1e3": 1000.0, "1.5": 1.5}
    assert {text: quantity(text) for text in same} == same
    assert [quantity(text) for text in ("1GB", "", "m", "1 Gi", True, None, "-1", "1e")] == [
        None
    ] * 8


def test_paths_name_values() -> None:
    body = {"a": [{"name": "x", "b": 1}, {"name": "y", "b": 2}], "c": {"d.e/f": 3}}
    assert dict(find(body, "a[*].b")) == {"a[0].b": 1, "a[1].b": 2}
    assert dict(find(body, "a[name=y].b")) == {"a[1].b": 2}
    assert dict(find(body, "a[1].b")) == {"a[1].b": 2}
    assert dict(find(body, "c['d.e/f']")) == {"c['d.e/f']": 3}
    assert list(find(body, "a.b")) == list(find(body, "c[0]")) == []
    for wrong in ("a b", ".a", "a[", "a[]", "a['x"):
        with pytest.raises(ValueError, match="is no path"):
            parse_path(wrong)
