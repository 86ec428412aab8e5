"""Examples for clusters: the Slurm script with stubs of its commands, the KubeRay manifest and its schema.

Neither Slurm nor Kubernetes is here. KUBERAY_CRD=FILE names the definition of RayJob, of
github.com/ray-project/kuberay, against which the manifest is checked too.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

from assay.config import field_help  # noqa: E402

FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"
STUB = """#!/bin/bash
n=$(grep -c 'ray start' "$CALLS")  # counted first: a status stands behind what it has seen
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $*" in
scontrol*) printf 'n1\\nn2\\nn3\\n' ;;
*hostname*) echo address-of-n1 ;;
"ray status"*) [ "$n" -gt "${NODES:-3}" ] && n=$NODES
    for i in $(seq "$n"); do echo " 1 node_$i"; done ;;
"srun "*"ray start"*) exec sleep 60 ;;
"srun "*"assay train"*) exit "${TRAINED:-0}" ;;
esac
"""


def run_script(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
    """Return exit code, the calls of other commands, and what was complained of."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("srun", "scontrol", "ray"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    known = {"PATH": f"{stubs}:{os.environ['PATH']}", "CALLS": str(calls)}
    known |= {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_PER_TASK": "8", "RAY_WAIT": "20"}
    done = subprocess.run(
        ["bash", str(EXAMPLES / "slurm.sh"), *arguments],
        env=known | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, calls.read_text().splitlines(), done.stderr


def test_slurm_starts_a_head_then_workers_then_the_run(tmp_path: Path) -> None:
    code, calls, _ = run_script(tmp_path, "run.toml", "--set", "rl.steps=20")
    assert code == 0
    steps = [call for call in calls if call.startswith("srun") and "hostname" not in call]
    one = "srun --nodes=1 --ntasks=1 --overlap --nodelist="
    assert steps[0] == (
        f"{one}n1 ray start --head --node-ip-address=address-of-n1 --port=6379 --num-cpus=8 --block"
    )
    worker = "ray start --address=address-of-n1:6379 --num-cpus=8 --block"
    assert sorted(steps[1:3]) == [f"{one}n2 {worker}", f"{one}n3 {worker}"]
    assert steps[3:] == [f"{one}n1 --cpus-per-task=8 assay train run.toml --set rl.steps=20"]
    last = max(n for n, call in enumerate(calls) if call.startswith("ray status"))
    assert calls.index(steps[3]) > last > calls.index(steps[2]), "it waited for all machines"


def test_slurm_ends_with_the_code_of_the_run(tmp_path: Path) -> None:
    assert run_script(tmp_path, "run.toml", TRAINED="2")[0] == 2


def test_slurm_tells_of_machines_that_never_join(tmp_path: Path) -> None:
    code, calls, said = run_script(tmp_path, "run.toml", RAY_WAIT="2", NODES="2")
    assert code == 1 and "found 2 machines in the cluster; accepted: 3" in said
    assert not [call for call in calls if "assay train" in call]


def test_slurm_without_a_configuration_starts_nothing(tmp_path: Path) -> None:
    code, calls, said = run_script(tmp_path)
    assert code == 2 and not calls and "accepted: sbatch slurm.sh run.toml" in said


def manifest() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text(encoding="utf-8"))


def test_the_manifest_is_one_job_with_its_own_cluster() -> None:
    found = manifest()
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    spec = found["spec"]
    assert spec["shutdownAfterJobFinishes"] is True and spec["backoffLimit"] == 0
    words = spec["entrypoint"].split()
    assert words[:3] == ["assay", "train", "/config/run.toml"]
    keys = {key for key, *_ in field_help()}
    changes = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
    assert changes and {change.partition("=")[0] for change in changes} <= keys
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]} == {"config", "runs"}
        assert container["resources"]["requests"] == container["resources"]["limits"]
    worker = cluster["workerGroupSpecs"][0]
    cpus = worker["replicas"] * int(
        groups[1]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    )
    assert cpus >= 4, "a CPU for each rollout actor of the entrypoint"
    assert worker["minReplicas"] <= worker["replicas"] <= worker["maxReplicas"]


def faults(value: Any, schema: dict[str, Any], place: str = "") -> list[str]:
    """Return what a definition of Kubernetes does not know or accept, with its place."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, int | str) else [f"{place}: {value!r}"]
    if (kind := kinds.get(schema.get("type", ""))) and not isinstance(value, kind):
        return [f"{place}: {value!r} is no {schema['type']}"]
    found = [] if value in schema.get("enum", [value]) else [f"{place}: {value!r}"]
    if isinstance(value, list):
        for n, one in enumerate(value):
            found += faults(one, schema["items"], f"{place}[{n}]")
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        found += [
            f"{place}.{key}: missing" for key in schema.get("required", ()) if key not in value
        ]
        for key, one in value.items():
            inner = known.get(key, other)
            if inner is not None:
                found += faults(one, inner, f"{place}.{key}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and schema.get(
                "properties"
            ):
                found.append(f"{place}.{key}: unknown")
    return found


@pytest.mark.skipif("KUBERAY_CRD" not in os.environ, reason="KUBERAY_CRD names no definition")
def test_the_manifest_matches_kuberays_definition() -> None:
    definition = yaml.load(Path(os.environ["KUBERAY_CRD"]).read_text(encoding="utf-8"), FAST)
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    schema = version["schema"]["openAPIV3Schema"]
    assert faults(manifest(), schema) == []
    wrong = manifest()
    wrong["spec"]["entrypoints"] = wrong["spec"].pop("entrypoint")
    wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] = "2"
    assert len(faults(wrong, schema)) == 2, "the check finds faults"
