"""The house rules: who imports whom, sizes, a light `import assay`, few dependencies, no stray
names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import assay

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "assay"
FOLDERS = ("assay", "tests", "tools", "examples", "bench", "studies")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 80
MAX_CORE_DEPENDENCIES = 12

# A package may import packages of a lower rank, and those of its own rank that are not in APART.
# `generate.turns` (it uses the sandbox), `plan.measured` (it opens a session) and `report.viewer`
# (it is a server) count as packages.
RANKS = {
    "think": 0,
    "errors": 0,
    "types": 1,
    "validation": 1,
    "host": 2,
    "config": 3,
    "endpoint": 3,
    "data": 4,
    "verify": 4,
    "model": 5,
    "run": 5,
    "testing": 6,
    "generate": 6,
    "learn": 6,
    "reward_models": 7,
    "generate.turns": 7,
    "plan": 7,
    "report": 7,
    "scale": 8,
    "report.viewer": 9,
    "doctor": 8,
    "session": 9,
    "training": 10,
    "curation": 10,
    "release": 11,
    "evaluation": 11,
    "plan.measured": 11,
    "init": 11,
    "recipes": 12,
    "sweep": 13,
    "cli": 14,
}
APART = {"verify", "generate", "learn"}
ONLY = {  # all that these may import
    "host": {"errors", "types", "validation"},
    "endpoint": {"errors", "types", "host"},
    "verify": {"errors", "types", "think", "host", "endpoint"},
}

LIGHT = ["assay", "assay.types", "assay.errors", "assay.config", "assay.cli"]
HEAVY = {"torch", "transformers", "tokenizers", "pyarrow", "sympy", "math_verify"}
HEAVY |= {"reasoning_gym", "pandas", "peft", "datasets", "scipy", "matplotlib"}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement, handler and case in a tree; not their expressions, which are most of
    it."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def package_of(path: Path) -> str:
    return ranked(path.relative_to(PACKAGE).with_suffix("").parts)


def ranked(parts: Sequence[str]) -> str:
    return inner if (inner := ".".join(parts[:2])) in RANKS else parts[0]


def imported_packages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, package) of each import of our own package, wherever it stands in the file."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "assay":
            names = [f"assay.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            parts = name.split(".")
            is_ours = parts[0] == "assay" and len(parts) > 1
            if is_ours and (parts[1] in RANKS or not hasattr(assay, parts[1])):
                yield node.lineno, ranked(parts[1:])


def named_in_strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, package) of each text that names a module or an object of ours: an import
    too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(r"assay\.(\w+(?:\.\w+)*)(?::\w+)?", node.value)
            yield from [(node.lineno, ranked(found[1].split(".")))] if found else ()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(tree: ast.AST, known: Collection[str]) -> set[str]:
    """Return the modules of ours that a file imports, inside functions and for types too."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & set(known) or {node.module}
    return found & set(known)


def circle_in(imports: Mapping[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next, the first again at the end; [] where there are
    none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def layer_faults(package: str, tree: ast.AST) -> list[str]:
    faults: list[str] = []
    for line, other in [*imported_packages(tree), *named_in_strings(tree)]:
        if other == package:
            continue
        if other not in RANKS:
            faults.append(f"{line}: imports assay.{other}, which has no rank in test_house.RANKS")
        elif RANKS[other] > RANKS[package]:
            faults.append(f"{line}: {package} imports {other}, a higher layer")
        elif other not in ONLY.get(package, RANKS):
            faults.append(
                f"{line}: {package} imports {other}, and may import {sorted(ONLY[package])}"
            )
        elif {package, other} <= APART:
            faults.append(f"{line}: {package} imports {other}; they never import one another")
    return faults


def test_every_module_has_a_rank() -> None:
    packages = {package_of(path) for path in python_files("assay")} - {"__init__"}
    assert packages <= RANKS.keys(), (
        "give the new package its rank in RANKS, by the design's layers"
    )


@pytest.mark.parametrize("name", named(python_files("assay")))
def test_imports_run_one_way(name: str) -> None:
    path = ROOT / name
    if path != PACKAGE / "__init__.py":
        assert not layer_faults(package_of(path), tree_of(path))


def test_no_files_import_each_other_in_a_circle() -> None:
    """Nowhere: not inside functions, and not for types alone."""
    files = {module_of(path): path for path in python_files("assay")}
    imports = {
        name: imported_modules(tree_of(path), files) - {name} for name, path in files.items()
    }
    assert sum(map(len, imports.values())) > len(files)
    assert not circle_in(imports)


def test_no_packages_import_each_other_in_a_circle() -> None:
    packages: dict[str, set[str]] = {}
    for path in python_files("assay"):
        if path != PACKAGE / "__init__.py":
            found = {package for _, package in imported_packages(tree_of(path))}
            packages.setdefault(package_of(path), set()).update(found - {package_of(path)})
    assert "session" in packages["training"]
    assert not circle_in(packages)


def test_the_circle_rule_finds_one() -> None:
    lines = {
        "assay.a": "from assay import b",
        "assay.b": "def f():\n    from assay.c import g",
        "assay.c": "import assay.a",
        "assay.d": "import assay.a",
    }
    imports = {name: imported_modules(ast.parse(line), lines) for name, line in lines.items()}
    assert {*circle_in(imports)} == {"assay.a", "assay.b", "assay.c"}
    assert not circle_in({**imports, "assay.c": set()})


def test_no_relative_imports() -> None:
    """But among the few files that the sandbox's zygote loads without the package."""
    from assay.verify.sandbox.zygote import SIBLINGS

    alone = {f"assay/verify/sandbox/{name}.py" for name in SIBLINGS}
    files = [name for name in named(python_files("assay")) if name not in alone]
    faults = [
        f"{name}:{node.lineno}"
        for name in files
        for node in statements(tree_of(ROOT / name))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not faults, "the layer rule reads absolute imports"


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("config", "from assay.data.problems import load_problems"),
        ("verify", "import assay.learn.losses"),
        ("verify", "from assay.config import parse"),
        ("learn", "from assay import generate"),
        ("training", "def f():\n    from assay.init import configuration"),
        ("types", "from assay import config"),
        ("verify", 'PLACES = {"a": "assay.reward_models.scalar:MODEL"}'),
    ],
)
def test_the_layer_rule_finds_faults(package: str, line: str) -> None:
    assert len(layer_faults(package, ast.parse(line))) == 1


def test_files_are_short() -> None:
    sizes = {
        name: len((ROOT / name).read_text(encoding="utf-8").splitlines())
        for name in named(python_files(*FOLDERS))
    }
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def long_functions(tree: ast.AST) -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    sizes = {
        f"{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for node in statements(tree)
        if isinstance(node, functions)
    }
    return {place: size for place, size in sizes.items() if size > MAX_FUNCTION_LINES}


def test_functions_are_short() -> None:
    files = named(python_files(*FOLDERS))
    assert {name: found for name in files if (found := long_functions(tree_of(ROOT / name)))} == {}


def test_the_size_rule_finds_faults() -> None:
    body = "\n    x = 1" * MAX_FUNCTION_LINES
    assert long_functions(ast.parse(f"def f():{body}")) == {"1 f": MAX_FUNCTION_LINES + 1}


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after running ``code``."""
    program = f"import sys\n{code}\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", LIGHT)
def test_import_is_light(module: str) -> None:
    assert modules_after(f"import {module}") & HEAVY == set()


def test_help_is_light() -> None:
    code = (
        "from assay.cli import main\nsys.argv = ['assay', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert modules_after(code) & HEAVY == set()


def test_the_light_rule_finds_faults() -> None:
    assert "sympy" in modules_after("import sympy") & HEAVY


# What runs in processes of their own, whose output is a protocol or a program's.
PRINTS = {
    "assay/host/terminal.py",
    "assay/generate/turns/interpreter.py",
    "assay/verify/sandbox/agent.py",
    "assay/verify/sandbox/probe.py",
}


def prints(tree: ast.AST) -> list[str]:
    """Return the calls that write to a standard stream, by their lines."""
    streams = re.compile(
        r"(print|(typer|click)\.(echo|secho)|sys\.(__)?std(out|err)(__)?\.\w*write\w*)"
    )
    last = re.compile(r"print|echo|secho|\w*write\w*")  # of most calls the whole is never written
    return [
        f"{node.lineno} {ast.unparse(node.func)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and last.fullmatch(getattr(node.func, "attr", getattr(node.func, "id", "")))
        and streams.fullmatch(ast.unparse(node.func))
    ]


def test_only_the_terminal_module_prints() -> None:
    files = [name for name in named(python_files("assay")) if name not in PRINTS]
    faults = {name: found for name in files if (found := prints(tree_of(ROOT / name)))}
    assert faults == {}, "use assay.host.terminal: foreign text may hold escapes and line breaks"


def test_the_print_rule_finds_faults() -> None:
    text = "def f():\n    print(1)\nsys.stderr.write(2)\ntyper.echo(3)\nsay(4)\nx.print(5)\n"
    assert prints(ast.parse(text)) == ["3 sys.stderr.write", "4 typer.echo", "2 print"]


def unexplained_excepts(text: str) -> list[int]:
    """Return the lines of broad excepts that neither raise again nor have a comment."""
    faults: list[int] = []
    lines = text.splitlines()
    for node in statements(ast.parse(text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = "BaseException" if node.type is None else ast.unparse(node.type)
        is_broad = re.search(r"\b(Base)?Exception\b", kinds)
        raises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
        if is_broad and not raises and "#" not in lines[node.lineno - 1]:
            faults.append(node.lineno)
    return faults


def test_broad_excepts_say_why() -> None:
    files = named(python_files("assay"))
    faults = {name: lines for name in files if (lines := unexplained_excepts(read(name)))}
    assert faults == {}, "only where foreign code runs: say whose, in a comment on the line"


def test_the_except_rule_finds_faults() -> None:
    text = "try:\n    f()\nexcept {}:\n    {}\n"
    assert unexplained_excepts(text.format("Exception", "pass")) == [3]
    assert unexplained_excepts(text.format("(ValueError, Exception) as error", "pass")) == [3]
    assert unexplained_excepts(text.format("Exception", "raise")) == []
    assert unexplained_excepts(text.format("ValueError", "pass")) == []


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_core_dependencies_are_few() -> None:
    assert len(core_dependencies()) <= MAX_CORE_DEPENDENCIES


def core_dependencies() -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in project()["dependencies"]}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def eager_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level packages that a module imports as it is loaded."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            pending += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            pending += [*node.body, *node.orelse, *node.finalbody]


# Files that travel into the process of a test program, where they know one another by their bare
# names.
SENT = {"standard_names", "stand_ins", "test_process"}


def test_only_core_dependencies_are_imported_at_load() -> None:
    distributions = packages_distributions()
    core = core_dependencies()
    faults: list[str] = []
    for name in named(python_files("assay")):
        known = {"assay", "__future__"}
        if name in {f"assay/verify/programs/{each}.py" for each in SENT}:
            known |= SENT
        for package in set(eager_imports(tree_of(ROOT / name))) - known:
            owners = {canonicalize_name(owner) for owner in distributions.get(package, [])}
            if package not in sys.stdlib_module_names and not owners & core:
                faults.append(f"{name} imports {package}")
    assert not faults, "import an extra, or another package's dependency, where it is used"


def test_constraints_hold_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pinned[canonicalize_name(name)] = version
    for wanted in [*map(Requirement, project()["dependencies"]), *wanted_by("dev")]:
        version = pinned.get(canonicalize_name(wanted.name))
        assert version and wanted.specifier.contains(version), f"{wanted}: {version}"
    assert pinned["torch"] == "2.13.0"


def wanted_by(extra: str) -> Iterator[Requirement]:
    """Yield what an extra asks for, those of our own extras that it names included."""
    for wanted in map(Requirement, project()["optional-dependencies"][extra]):
        if wanted.name == project()["name"]:
            for inner in wanted.extras:
                yield from wanted_by(inner)
        else:
            yield wanted


def test_data_files_are_packaged() -> None:
    """A wheel holds the data files that stand in the package."""
    patterns = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["package-data"]["assay"]
    packaged = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    data = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    }
    assert data and data <= packaged


def test_no_machine_paths_or_hosts() -> None:
    stray = re.compile(r"/(work|root|home|Users|opt)/\w|\b\d+\.\d+\.\d+\.\d+:\d+|shared/data")
    allowed = {"tests/test_house.py"}
    texts = [path for path in ROOT.glob("*") if path.suffix in (".md", ".toml", ".json", ".txt")]
    texts += [ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in (*FOLDERS, "docs", "recipes"):
        suffixes = (".py", ".md", ".toml", ".sh")
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    faults = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if str(path.relative_to(ROOT)) not in allowed
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if stray.search(line)
    ]
    assert not faults


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Two of one name cannot be collected together; a conftest is no module to import."""
    names = [path.name for path in python_files("tests") if path.name != "conftest.py"]
    assert len({*names}) == len(names), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.parametrize("name", named(python_files("tests")))
def test_no_test_asserts_seconds(name: str) -> None:
    """A busy machine is slow; `tests/growth.py` has ratios and counts."""
    text = (ROOT / name).read_text(encoding="utf-8")
    clock = r"time\.(?:time|monotonic|perf_counter|process_time|thread_time)\(\)"
    assert not re.findall(rf"assert[^\n]*{clock} - \w+ <", text)
