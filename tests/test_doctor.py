"""The doctor finds what is broken, says how to mend it, and calls a sound install sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay import doctor
from assay.errors import WorkerDied
from assay.model import triton_jit


def by_name(findings: list[doctor.Checked]) -> dict[str, doctor.Checked]:
    return {finding.name: finding for finding in findings}


def test_this_install_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.report(as_json=True, directory=tmp_path / "runs") == 0
    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["sound"] is True
    names = [finding["name"] for finding in told["findings"]]
    assert len(names) == len(set(names))
    assert {"python", "torch", "math-verify", "extra lora", "memory", "self-test cpu"} <= {*names}
    for finding in told["findings"]:
        assert finding["found"]
        assert (finding["status"] == "ok") == (finding["remedy"] == "") or finding["name"] == "cuda"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_the_report_calls_a_sound_install_sound(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert doctor.report(directory=tmp_path) == 0
    text = capsys.readouterr().out
    assert "the install is sound" in text
    assert "self-test cpu" in text


def test_a_missing_compiler_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "c_compiler", lambda: None)
    finding = by_name(list(doctor._check_processor()))["C compiler"]
    assert finding.status == "note" and "install" in finding.remedy
    monkeypatch.setattr(doctor, "c_compiler", lambda: ("/usr/bin/cc", "cc 12.2"))
    assert by_name(list(doctor._check_processor()))["C compiler"].found == "cc 12.2"


def test_kernels_that_do_not_compile_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_jit, "fault_on", lambda _: "Failed to find C compiler.")
    finding = doctor._kernels_on(0)
    assert finding.status == "note" and "Failed to find C compiler." in finding.found
    monkeypatch.setattr(triton_jit, "fault_on", lambda _: None)
    assert doctor._kernels_on(0).status == "ok"


@pytest.mark.parametrize(
    ("requirement", "found"),
    [
        ("numpy>=99", "accepted: numpy>=99"),
        ("no-such-package>=1", "not installed; accepted: no-such-package>=1"),
    ],
)
def test_a_dependency_out_of_range_is_broken(
    requirement: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: [requirement, 'peft ; extra == "lora"'])
    findings = list(doctor._check_packages())
    assert [finding.status for finding in findings] == ["ok", "broken", "ok"]
    assert findings[1].found.endswith(found)
    assert findings[1].remedy == f'run  pip install "{requirement}"'


def test_a_dependency_that_does_not_import_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tabulate_broken.py").write_text("raise OSError('libgomp.so.1 is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "requires", lambda _: ["tabulate-broken"])
    monkeypatch.setattr(doctor, "version", lambda _: "1.0")
    finding = list(doctor._check_packages())[-1]
    assert finding.status == "broken"
    assert finding.found == "cannot be imported: OSError: libgomp.so.1 is missing"


def test_a_checkout_that_is_not_installed_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISTRIBUTION", "no-such-distribution")
    [finding] = doctor._check_packages()
    assert (finding.status, "pip install -e ." in finding.remedy) == ("broken", True)


def test_an_absent_extra_is_a_note_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['no-such-package>=1 ; extra == "lora"', "numpy"]
    monkeypatch.setattr(doctor, "requires", lambda _: lines)
    *_, finding = doctor._check_packages()
    assert finding.status == "note"
    assert finding.remedy.endswith('pip install "assay-rl[lora]"')


def test_a_runs_folder_that_is_a_file_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs"
    place.write_text("")
    assert doctor.report(as_json=True, directory=place) == 1
    told = json.loads(capsys.readouterr().out)
    broken = [finding for finding in told["findings"] if finding["status"] == "broken"]
    assert [finding["name"] for finding in broken] == ["runs"]
    assert broken[0]["found"] == f"{place} cannot be written (Not a directory)"


@pytest.mark.parametrize("error", [WorkerDied("it died twice"), OSError(11, "no more processes")])
def test_workers_that_cannot_start_are_broken(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[str]:
        raise error

    monkeypatch.setattr(doctor, "_try_verifier", fail)
    [finding] = doctor._check_verifiers()
    assert (finding.status, finding.found) == ("broken", f"no worker process can be used: {error}")


def test_a_verifier_that_passes_everything_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_try_verifier", lambda: ["passed", "passed"])
    [finding] = doctor._check_verifiers()
    assert finding.status == "broken"
    assert finding.found == "a right and a wrong answer are judged passed and passed"


def test_a_model_that_cannot_run_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> tuple[float, float, float]:
        raise RuntimeError("illegal instruction\nmore lines")

    monkeypatch.setattr(doctor, "_try_tiny_model", broken)
    finding = next(doctor._check_learning())
    assert finding.status == "broken"
    assert finding.found == "failed: RuntimeError: illegal instruction"


@pytest.mark.parametrize(
    ("gradient", "difference", "status"),
    [
        (0.5, 1e-6, "ok"),
        (0.0, 1e-6, "broken"),
        (float("nan"), 1e-6, "broken"),
        (float("inf"), 1e-6, "broken"),
        (0.5, 1e-2, "note"),
        (0.5, float("nan"), "note"),
    ],
)
def test_the_self_test_is_judged(
    gradient: float, difference: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_try_tiny_model", lambda _: (gradient, difference, 1e-4))
    assert next(doctor._check_learning()).status == status


def test_offline_mode_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert next(doctor._check_hub()).status == "note"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert next(doctor._check_hub()).status == "ok"


@pytest.mark.parametrize(("rate", "status"), [(0.9e9, "note"), (900e9, "ok")])
def test_the_rate_of_every_type_is_shown(
    rate: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"float32": 152e9, "bfloat16": rate}
    monkeypatch.setattr("assay.model.rates.rates_here", lambda device, measure=False: (found, True))
    finding = by_name(list(doctor._check_processor()))["matrix products on cpu"]
    assert finding.status == status
    assert finding.found == f"float32 152 GFLOP/s, bfloat16 {rate / 1e9:.3g} GFLOP/s"
    assert ('model.dtype = "float32"' in finding.remedy) == (status == "note")
