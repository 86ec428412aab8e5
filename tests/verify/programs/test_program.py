"""Programs in several languages, compiled and run in the real sandbox."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Limits, Part
from assay.verify.programs import compiled, languages
from assay.verify.programs.compiled import PROGRAM, find_source, judge_program
from assay.verify.programs.languages import LANGUAGES
from assay.verify.sandbox import Sandbox
from assay.verify.sandbox.toolchain import FOLDERS, Command, execute
from assay.verify.selftest import labelled_pair, labelled_rows

SUM = [{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "-7 3\n", "stdout": "-4\n"}]
SUMS = {
    "c": '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); }',
    "cpp": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }",
    "rust": "use std::io;\nfn main() {\n    let mut s = String::new();\n    io::stdin().read_line(&mut s).unwrap();\n"
    '    let v: i32 = s.split_whitespace().map(|x| x.parse::<i32>().unwrap()).sum();\n    println!("{}", v);\n}',
    "go": 'package main\n\nimport "fmt"\n\nfunc main() {\n\tvar a, b int\n\tfmt.Scan(&a, &b)\n\tfmt.Println(a + b)\n}',
    "java": "import java.util.*;\npublic class Sum { public static void main(String[] x) {\n"
    "    Scanner s = new Scanner(System.in); System.out.println(s.nextInt() + s.nextInt()); } }",
    "javascript": 'const [a, b] = require("fs").readFileSync(0, "utf8").split(" ").map(Number);\nconsole.log(a + b);',
    "bash": "read a b\necho $((a + b))",
}


def judge(language: str, program: str, tests: Any = SUM, **spec: Any) -> Part:
    text = f"```{language}\n{program}\n```"
    problem = Problem("p", "Write it.", {"language": language, "tests": tests, **spec})
    return judge_program(problem, Completion.from_text(text))


def need(language: str) -> None:
    if why := languages.missing(language):
        pytest.skip(why)


def test_every_language_of_the_table_has_a_program_here() -> None:
    assert SUMS.keys() == LANGUAGES.keys()


@pytest.mark.parametrize("language", SUMS)
def test_language_judges_right_and_wrong_programs(language: str) -> None:
    need(language)
    right = judge(language, SUMS[language])
    assert right.passed, right
    wrong = judge(language, SUMS[language].replace("+", "-", 1).replace("sum()", "product()"))
    assert not wrong.passed and wrong.components["wrong_answer"] == 1, wrong
    broken = judge(language, SUMS[language][:-4] + "((")
    interpreted = not LANGUAGES[language].compile
    fault = "runtime_error" if interpreted else "compile_error"
    assert broken.components[fault] == 1 and not broken.passed, broken


def test_faults_are_separate_components() -> None:
    need("c")
    for program, fault in {
        "int main(void) { return x; }": "compile_error",
        "int main(void) { return 3; }": "runtime_error",
        "int main(void) { *(volatile int *)0 = 1; }": "runtime_error",
        "int main(void) { for (volatile int i = 0;; i++); }": "timeout",
        "#include <unistd.h>\nint main(void) { sleep(60); }": "timeout",
        '#include <stdio.h>\nint main(void) { for (;;) puts("xxxxxxxxxxxxxxxxxxxxxxxx"); }': "output",
        '#include <stdio.h>\nint main(void) { puts("6"); }': "wrong_answer",
    }.items():
        part = judge("c", program, SUM[:1], time_limit=1.0)
        faults = {name for name in compiled.FAULTS if part.components[name]}
        assert faults == {fault}, (program, part)
        assert part.components["warnings"] == 0 and part.value == 0


def test_warning_is_a_component_and_changes_no_score() -> None:
    need("c")
    part = judge("c", SUMS["c"].replace("int a", "int unused; int a"))
    assert part.passed and part.components["warnings"] == 1


def test_memory_is_limited() -> None:
    need("cpp")
    program = (
        "#include <vector>\nint main() { std::vector<char> v(900000000UL, 1); return v[7] - 1; }"
    )
    assert judge("cpp", program, SUM[:1]).components["memory"] == 1
    need("javascript")
    program = "const x = []; while (true) x.push(new Array(1000).fill(1.5));"
    assert judge("javascript", program, SUM[:1], memory_limit=64).components["memory"] == 1


def test_shares_of_public_and_hidden_tests() -> None:
    need("bash")
    part = judge("bash", "echo 5", SUM[:1], hidden_tests=SUM, credit="fraction")
    assert part.components["public"] == 1 and part.components["hidden"] == 0.5
    assert part.value == pytest.approx(2 / 3) and not part.passed


def test_driver_calls_the_program() -> None:
    need("c")
    driver = '#include <stdio.h>\nint f(int);\nint main(void) { int a; scanf("%d", &a); printf("%d", f(a)); }'
    tests = [{"stdin": "4", "stdout": "16"}]
    assert judge("c", "int f(int x) { return x * x; }", tests, driver=driver).passed
    assert not judge("c", "int f(int x) { return x + x + x; }", tests, driver=driver).passed


def test_missing_toolchain_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "missing", lambda name: f"{name}: not installed" * (name == "go"))
    part = judge("go", SUMS["go"])
    assert (part.value, part.reason) == (None, "unavailable") and "not installed" in part.detail
    assert PROGRAM.lacks is not None
    assert PROGRAM.lacks({"language": "go"}) == "go: not installed"
    assert PROGRAM.lacks({"language": "c"}) == ""


def test_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages.shutil, "which", lambda tool: None)
    languages.missing.cache_clear()
    try:
        assert languages.missing("java").startswith("java: javac and java not installed")
    finally:
        languages.missing.cache_clear()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"language": "cobol", "tests": SUM}, "language"),
        ({"tests": SUM}, "language"),
        ({"language": "c", "tests": []}, "no test"),
        ({"language": "c", "tests": [{"stdin": "1"}]}, "tests"),
        ({"language": "c", "tests": [{"stdout": []}]}, "tests"),
        ({"language": "c", "tests": SUM, "time_limit": 0}, "time_limit"),
    ],
)
def test_malformed_row_is_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(VerifierError, match=words):
        judge_program(Problem("p", "", spec), Completion.from_text("x"))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("```c\na\n```", "a\n"),
        ("```c\na\n```\n```c\nb\n```\n```text\nout\n```", "b\n"),
        ("```python\na\n```", None),
        ("```C\na", "a\n"),
        ("~~~\na\n~~~", "a\n"),
        ("int x;", "int x;"),
        ("", None),
        ("````c\n```\n````", "```\n"),
    ],
)
def test_program_that_is_found(text: str, source: str | None) -> None:
    assert find_source(text, LANGUAGES["c"]) == source


# What a command of the sandbox can reach.

REACH = {
    "fork": (
        '#include <unistd.h>\n#include <stdio.h>\nint main(void) { printf("%d", fork()); }',
        "-1",
    ),
    "socket": (
        '#include <sys/socket.h>\n#include <stdio.h>\nint main(void) { printf("%d", socket(2, 1, 0)); }',
        "-1",
    ),
    "host files": (
        '#include <stdio.h>\nint main(void) { printf("%d", fopen("/etc/passwd", "r") == 0); }',
        "1",
    ),
    "write to a library": (
        '#include <stdio.h>\nint main(void) { printf("%d", fopen("/usr/x", "w") == 0); }',
        "1",
    ),
    "descriptors": (
        "#include <unistd.h>\n#include <stdio.h>\nint main(void) { char b; int n = 0;\n"
        'for (int i = 3; i < 1024; i++) n += read(i, &b, 1) >= 0; printf("%d", n); }',
        "0",
    ),
    "mounts": (
        '#include <sys/mount.h>\n#include <stdio.h>\nint main(void) { printf("%d", mount("none", "/tmp", "tmpfs", 0, 0)); }',
        "-1",
    ),
    "tracing": (
        '#include <sys/ptrace.h>\n#include <stdio.h>\nint main(void) { printf("%ld", ptrace(PTRACE_ATTACH, 1, 0, 0)); }',
        "-1",
    ),
    "user": (
        '#include <unistd.h>\n#include <stdio.h>\nint main(void) { printf("%d %d", getuid(), setuid(0)); }',
        "65534 -1",
    ),
    "new namespace": (
        '#define _GNU_SOURCE\n#include <sched.h>\n#include <stdio.h>\nint main(void) { printf("%d", unshare(CLONE_NEWUSER)); }',
        "-1",
    ),
    "environment": (
        '#include <stdlib.h>\n#include <stdio.h>\nint main(void) { printf("%s", getenv("ASSAY_SECRET") ? "yes" : "no"); }',
        "no",
    ),
}


@pytest.mark.parametrize("name", REACH)
def test_compiled_program_reaches_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need("c")
    monkeypatch.setenv("ASSAY_SECRET", "x")
    program, output = REACH[name]
    part = judge("c", program, [{"stdin": "", "stdout": output}])
    assert part.passed, part


@pytest.fixture(scope="module")
def commands() -> Generator[Sandbox]:
    with Sandbox(toolchain=FOLDERS) as made:
        yield made


def test_process_that_a_command_leaves_ends_with_it(commands: Sandbox) -> None:
    need("bash")
    files = {"a.sh": b"(while true; do :; done) &\necho started"}
    command = Command((languages.path_of("bash", "bash"), "a.sh"), files, processes=True)
    ran = execute(commands, command, "", Limits(cpu_seconds=2.0))
    assert (ran.status, ran.stdout) == ("ok", "started\n")


def test_cpu_time_counts_all_processes(commands: Sandbox) -> None:
    need("bash")
    files = {"a.sh": b"for i in 1 2 3; do (while true; do :; done) & done\nwait"}
    command = Command((languages.path_of("bash", "bash"), "a.sh"), files, processes=True)
    ran = execute(commands, command, "", Limits(cpu_seconds=0.5))
    assert ran.status == "timeout" and "CPU time" in ran.error


def test_files_of_one_command_are_not_seen_by_the_next(commands: Sandbox) -> None:
    need("bash")
    bash = languages.path_of("bash", "bash")
    for _ in range(2):
        files = {"a.sh": b"ls /tmp/work /tmp; echo x > /tmp/left; echo x > left"}
        ran = execute(commands, Command((bash, "a.sh"), files, processes=True), "", Limits())
        assert ran.stdout == "/tmp:\nwork\n\n/tmp/work:\na.sh\n", ran


ROWS = list(labelled_rows("program"))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row["id"], marks=pytest.mark.slow if "hack" in row["id"] else ())
        for row in ROWS
    ],
)
def test_labelled_row(row: dict[str, Any]) -> None:
    need(row["language"])
    part = judge_program(*labelled_pair("program", row))
    assert part.passed is (row["expected"] == "passed"), part


def test_labelled_set_is_large_enough() -> None:
    assert len(ROWS) >= 40 and sum(row["kind"] == "hack" for row in ROWS) >= 20


# Known verdicts: expressions whose value Python computes, right and with one wrong constant.

Write = Callable[[str], str]
WRITERS: dict[str, Write] = {
    "c": lambda e: (
        f'#include <stdio.h>\nint main(void) {{ long a, b; if (scanf("%ld %ld", &a, &b) != 2) return 1; printf("%ld\\n", {e}); return 0; }}'
    ),
    "cpp": lambda e: (
        f"#include <iostream>\nint main() {{ long a, b; std::cin >> a >> b; std::cout << ({e}) << std::endl; }}"
    ),
    "rust": lambda e: (
        "use std::io;\nfn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();\n"
        "let v: Vec<i64> = s.split_whitespace().map(|x| x.parse().unwrap()).collect();\n"
        f'let (a, b) = (v[0], v[1]); println!("{{}}", {e}); }}'
    ),
    "go": lambda e: (
        f'package main\n\nimport "fmt"\n\nfunc main() {{\n\tvar a, b int64\n\tfmt.Scan(&a, &b)\n\tfmt.Println({e})\n}}'
    ),
    "java": lambda e: (
        "import java.util.*;\npublic class Main { public static void main(String[] x) {\n"
        f"Scanner s = new Scanner(System.in); long a = s.nextLong(), b = s.nextLong(); System.out.println({e}); }} }}"
    ),
    "javascript": lambda e: (
        f'const [a, b] = require("fs").readFileSync(0, "utf8").split(" ").map(Number);\nconsole.log({e});'
    ),
    "bash": lambda e: f"read a b\necho $(({e}))",
}


def generated(seed: int) -> tuple[str, str, list[dict[str, str]]]:
    """Return an expression, a wrong one, and tests that tell them apart."""
    rng = random.Random(seed)
    parts = [
        f"{rng.randint(2, 9)} * a",
        f"{rng.randint(2, 9)} * b",
        "a * b",
        f"{rng.randint(1, 99)}",
    ]
    rng.shuffle(parts)
    text = parts[0]
    for part in parts[1:]:
        text = f"({text}) {rng.choice('+-')} {part}"
    wrong = f"({text}) + {rng.randint(1, 5)}"
    inputs = [(rng.randint(-50, 50), rng.randint(-50, 50)) for _ in range(2)]
    tests = [
        {"stdin": f"{a} {b}\n", "stdout": f"{eval(text, {'a': a, 'b': b})}\n"} for a, b in inputs
    ]
    return text, wrong, tests


@pytest.mark.slow
@pytest.mark.parametrize("language", WRITERS)
def test_500_programs_have_their_known_verdicts(language: str) -> None:
    need(language)
    for seed in range(500):
        right, wrong, tests = generated(seed)
        is_right = seed % 2 == 0
        part = judge(language, WRITERS[language](right if is_right else wrong), tests[:1])
        assert part.passed is is_right, (seed, part)


@pytest.mark.parametrize("language", WRITERS)
def test_programs_have_their_known_verdicts(language: str) -> None:
    need(language)
    for seed in range(2):
        right, wrong, tests = generated(seed)
        part = judge(language, WRITERS[language](wrong if seed else right), tests)
        assert part.passed is (seed == 0), part
