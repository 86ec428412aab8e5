"""Assay outside of its checkout: what is built, what is in it, and what the pages say of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from assay import __version__

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, BUILD_SYSTEM = SETTINGS["project"], SETTINGS["build-system"]
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command without this checkout on its path; return what it prints."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=kept | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed_version(distribution: str) -> Version | None:
    try:
        return Version(version(distribution))
    except PackageNotFoundError:
        return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the source package and the wheel; skip where they cannot be built and installed."""
    (needed,) = map(Requirement, BUILD_SYSTEM["requires"])
    found = installed_version(needed.name)
    if found is None or not needed.specifier.contains(found):
        pytest.skip(f"needs {needed} to build the wheel, found {found}: make setup")
    if installed_version("pip") is None:
        pytest.skip("needs pip in this environment to install the wheel: make setup")
    out = tmp_path_factory.mktemp("dist")
    source, wheel = run(sys.executable, ROOT / "tools" / "dist.py", out, cwd=out).splitlines()
    return Path(source), Path(wheel)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new environment that holds the wheel, and sees this one's libraries by a .pth.

    Without the network: the dependencies alone would be a download of a gigabyte.
    """
    folder = tmp_path_factory.mktemp("fresh") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if Path(path).name in LIBRARY_FOLDERS]
    (packages / "libraries.pth").write_text("\n".join(libraries) + "\n")
    for name in map(Requirement, PROJECT["dependencies"]):
        if installed_version(name.name) is None:
            pytest.skip(f"needs {name}, which is not installed here: make setup")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-qq")
    flags = ("--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check")
    run(*pip, *flags, built[1], cwd=folder.parent)
    return folder


@pytest.mark.slow
def test_the_wheel_and_the_source_package_hold_every_file(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(built[1]) as wheel:
        in_wheel = set(wheel.namelist())
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "assay").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - in_wheel == set() and files - in_source == set()
    strays = {name.partition("/")[0] for name in in_wheel} - {"assay"}
    assert all(name.endswith(".dist-info") for name in strays), "nothing else is installed"
    assert {"LICENSE", "CHANGELOG.md", "docs/quickstart.md", "tests/test_install.py"} <= in_source


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_package_works_outside_of_its_checkout(installed: Path, tmp_path: Path) -> None:
    assay, python = installed / "bin" / "assay", installed / "bin" / "python"
    place = run(python, "-c", "import assay; print(assay.__file__)", cwd=tmp_path).strip()
    assert Path(place).is_relative_to(installed)
    assert run(assay, "--version", cwd=tmp_path) == f"assay {__version__}\n"
    assert "--seed" in run(assay, "demo", "--help", cwd=tmp_path)
    findings: Any = json.loads(run(assay, "doctor", "--json", cwd=tmp_path))
    assert findings and "broken" not in json.dumps(findings)
    tested = run(assay, "verifier", "self-test", "--verifier", "choice", cwd=tmp_path)
    assert "choice" in tested
    make = "import sys; from assay.testing import save_tiny_model; save_tiny_model(sys.argv[1])"
    run(python, "-c", make, "model", cwd=tmp_path)
    run(assay, "init", "grpo", "--model", "model", cwd=tmp_path)
    run(assay, "train", "grpo.toml", "--set", "rl.steps=1", cwd=tmp_path)
    assert (tmp_path / "runs" / "grpo" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_runs_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    """The two commands of the README, word for word, and the model has learned."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    init, train = re.findall(r"^    assay (init \S+|train \S+) {2,}#", readme, re.M)[:2]
    assay = installed / "bin" / "assay"
    run(assay, *init.split(), cwd=tmp_path)
    assert not (tmp_path / "assay").exists(), "only the wheel's package can be imported"
    said = run(assay, *train.split(), cwd=tmp_path, OMP_NUM_THREADS="1")
    folder = tmp_path / "runs" / "grpo"
    assert "report.html" in said and (folder / "report.html").is_file()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [json.loads(line)["reward/mean"] for line in lines]
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5])


def test_versions_in_other_files_are_those_of_the_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ruff=={hooks['repos'][0]['rev'].removeprefix('v')}" in pinned


def test_the_workflow_runs_the_ci_script_on_supported_pythons() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = flow["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step][-1] == ".ci/run"
    (oldest, *_) = pythons = job["strategy"]["matrix"]["python"]
    assert f">={oldest}" == PROJECT["requires-python"] and "3.14" in pythons


def test_the_page_lists_every_extra_with_its_packages() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.M))
    assert rows.keys() == PROJECT["optional-dependencies"].keys()
    for extra, packages in PROJECT["optional-dependencies"].items():
        names = {Requirement(each).name for each in packages} - {PROJECT["name"]}  # not its extras
        shown = set(re.findall(r"`([\w-]+)`", rows[extra]))
        assert shown <= names if extra == "dev" else shown == names, extra


def test_the_page_says_which_python_and_pytorch() -> None:
    (torch,) = [each for each in PROJECT["dependencies"] if each.startswith("torch")]
    assert f"PyTorch {torch.partition('>=')[2]} or newer" in PAGE
    assert f"Python {PROJECT['requires-python'].removeprefix('>=')} or newer" in PAGE
    assert f"assay_rl-{__version__}-py3-none-any.whl" in PAGE


def test_the_error_of_a_missing_extra_names_the_command_of_the_page() -> None:
    from assay.errors import MissingExtra

    command = 'pip install "assay-rl[hub]"'
    assert command in PAGE and str(MissingExtra.of("datasets", "hub", "hf:")).endswith(command)


def test_the_dockerfile_copies_what_there_is_and_its_commands_are_shell() -> None:
    joined = DOCKERFILE.replace("\\\n", " ")
    steps = [line for line in joined.splitlines() if line and not line.startswith("#")]
    kinds = [step.split()[0] for step in steps]
    assert set(kinds) <= {
        "ARG",
        "FROM",
        "ENV",
        "RUN",
        "COPY",
        "USER",
        "WORKDIR",
        "ENTRYPOINT",
        "CMD",
    }
    assert kinds[:2] == ["ARG", "FROM"] and "${BASE}" in steps[1], "the base is an argument"
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for kind, step in zip(kinds, steps, strict=True):
        if kind == "RUN":
            command = ["bash", "-n", "-c", step.removeprefix("RUN ")]
            assert subprocess.run(command).returncode == 0, step
        elif kind == "COPY":
            sources = step.split()[1:-1]
            assert all((ROOT / name).exists() for name in sources), step
            assert not set(sources) & set(ignored), step
        elif kind in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(step.partition(" ")[2]), list)
    extras = re.findall(r'ARG EXTRAS="(.*)"', DOCKERFILE)[0].split(",")
    assert set(extras) <= PROJECT["optional-dependencies"].keys()
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.M))
    assert set(re.findall(r"--build-arg (\w+)", DOCKERFILE + PAGE)) <= declared


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_is_built() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("needs a Docker engine that runs")
    run("docker", "build", "-t", "assay-test", str(ROOT), cwd=ROOT)
    said = run("docker", "run", "--rm", "assay-test", "--version", cwd=ROOT)
    assert said.split()[-1] == __version__
