"""The table of languages: commands that compile and run a program, and its toolchain's folders."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

JAVA_CLASS = re.compile(r"\bpublic\s+(?:final\s+|abstract\s+)*class\s+(\w+)")


@dataclass(frozen=True)
class Language:
    """One language.

    tools: programs that must be installed.
    source: file name of the program.
    driver: file name of a row's own code that calls the program.
    run, compile: commands, with ``{sources}`` and ``{main}`` (the driver if there is one, else the
        program).
    labels: labels that fenced blocks in this language have.
    kept: suffixes of the compiler's output files that the run needs.
    memory_mib: MiB of data that the run-time system needs in addition to the program's limit.
    processes: whether programs may start other processes.
    warning: regular expression for a compiler's warnings.
    folders: function that returns the toolchain's folders for the path of the first tool. Returns
        the toolchain's folders outside the system folders.
    """

    name: str
    tools: tuple[str, ...]
    source: str
    driver: str
    run: tuple[str, ...]
    labels: tuple[str, ...]
    compile: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    memory_mib: int = 0
    processes: bool = False
    warning: str = r"\bwarning:"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    folders: Callable[[str], tuple[str, ...]] = lambda _: ()
    version: tuple[str, ...] = ("--version",)


def _sysroot(rustc: str) -> tuple[str, ...]:
    done = subprocess.run(
        [rustc, "--print", "sysroot"], capture_output=True, text=True, timeout=60, check=False
    )
    return (done.stdout.strip(),) if done.stdout.strip() else ()


def _goroot(go: str) -> tuple[str, ...]:
    return (os.path.dirname(os.path.dirname(os.path.realpath(go))),)


_C_WARNINGS = ("-Wall", "-Wextra", "-O2")

LANGUAGES: dict[str, Language] = {
    each.name: each
    for each in (
        Language(
            "c",
            ("gcc",),
            "program.c",
            "driver.c",
            ("./main",),
            ("c", "h"),
            compile=("gcc", "-std=gnu17", *_C_WARNINGS, "-o", "main", "{sources}", "-lm"),
            kept=("main",),
        ),
        Language(
            "cpp",
            ("g++",),
            "program.cpp",
            "driver.cpp",
            ("./main",),
            ("cpp", "c++", "cc", "cxx"),
            compile=("g++", "-std=gnu++20", *_C_WARNINGS, "-o", "main", "{sources}"),
            kept=("main",),
        ),
        Language(
            "rust",
            ("rustc", "gcc"),
            "program.rs",
            "driver.rs",
            ("./main",),
            ("rust", "rs"),
            # rustc does not find its linker by name in the sandbox, so the command states the
            # linker's path.
            compile=(
                *("rustc", "--edition", "2021", "-O", "-C", "linker={linker}"),
                *("-o", "main", "{main}"),
            ),
            kept=("main",),
            warning=r"(?m)^warning\b",
            folders=_sysroot,
        ),
        Language(
            "go",
            ("go",),
            "program.go",
            "driver.go",
            ("./main",),
            ("go", "golang"),
            compile=("go", "build", "-o", "main", "{sources}"),
            kept=("main",),
            memory_mib=64,
            # Without GO111MODULE=off, go would look for a module file and its dependencies.
            environment={"GOCACHE": "/tmp/cache", "GOPATH": "/tmp/go", "GO111MODULE": "off"},
            folders=_goroot,
            version=("version",),
        ),
        Language(
            "java",
            ("javac", "java"),
            "Main.java",
            "Driver.java",
            # With many cores, Java's default garbage collector would start more threads than
            # allowed.
            ("java", "-Xmx{memory}m", "-Xss16m", "-XX:+UseSerialGC", "-cp", ".", "{class}"),
            ("java",),
            compile=(
                *("javac", "-J-Xmx256m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1"),
                *("-Xlint:all", "{sources}"),
            ),
            kept=(".class",),
            memory_mib=448,
        ),
        Language(
            "javascript",
            ("node",),
            "program.js",
            "driver.js",
            ("node", "--max-old-space-size={memory}", "{main}"),
            ("javascript", "js", "node", "mjs"),
            # Node needs several hundred MiB of data in addition to V8's heap limit.
            memory_mib=896,
        ),
        Language(
            "bash",
            ("bash",),
            "program.sh",
            "driver.sh",
            ("bash", "{main}"),
            ("bash", "sh", "shell"),
            processes=True,
        ),
    )
}
"""Supported languages by name. All languages have the same sandbox and limits."""


@lru_cache(maxsize=64)
def missing(name: str) -> str:
    """Return the reason why a language cannot be used on this machine, or ""."""
    absent = [tool for tool in LANGUAGES[name].tools if shutil.which(tool) is None]
    if not absent:
        return ""
    listed = " and ".join(absent)
    return f"{name}: {listed} not installed on this machine; install the toolchain, or leave it out"


@lru_cache(maxsize=64)
def path_of(name: str, tool: str) -> str:
    """Return the path of an installed tool; the path is the same inside the sandbox."""
    found = shutil.which(tool) or tool
    # rustup installs a launcher that reads the home folder, so the real compiler is preferred.
    for folder in LANGUAGES[name].folders(found) if tool == LANGUAGES[name].tools[0] else ():
        inside = os.path.join(folder, "bin", tool)
        if os.path.exists(inside):
            return inside
    return os.path.realpath(found)


@lru_cache(maxsize=1)
def toolchain_folders() -> tuple[str, ...]:
    """Return the folders outside the system's folders that installed toolchains need."""
    # Debian's JDK packages link their configuration from /etc.
    found = [*glob.glob("/etc/java*")]
    for name, each in LANGUAGES.items():
        if not missing(name):
            found += each.folders(shutil.which(each.tools[0]) or "")
    return tuple(dict.fromkeys(each for each in found if os.path.isdir(each)))


@lru_cache(maxsize=64)
def libraries_of(name: str) -> dict[str, str]:
    """Return environment variables that an installed toolchain needs to find its shared libraries.

    Without the environment variables, a tool finds libraries next to its own file through /proc,
    which the sandbox lacks.
    """
    home = os.path.dirname(os.path.dirname(path_of(name, LANGUAGES[name].tools[0])))
    if home == "/usr" or not os.path.isdir(f"{home}/lib"):
        return {}
    return {"LD_LIBRARY_PATH": f"{home}/lib"}


@lru_cache(maxsize=64)
def version_of(name: str) -> str:
    """Return the first output line of an installed tool's version command, or "unknown"."""
    language = LANGUAGES[name]
    command = [shutil.which(language.tools[0]) or "", *language.version]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (done.stdout or done.stderr).strip().partition("\n")[0] or "unknown"
