"""Static penalties for a program: its size, unsafe calls, hard-coded answers.

Each kind of penalty is a separate component. No penalty changes the score.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from assay.verify.programs.setup import tree_of
from assay.verify.programs.spec import CodeTest

UNSAFE_NAMES = frozenset(("eval", "exec", "compile", "__import__", "breakpoint", "__builtins__"))
_UNSAFE_MODULES = """
    builtins code ctypes faulthandler ftplib gc http importlib inspect marshal mmap
    multiprocessing pickle pty requests resource shutil signal socket ssl subprocess tempfile
    tracemalloc traceback urllib webbrowser _thread atexit pathlib glob
"""
# Programs that read much input use os.read(0, ...) and os.fstat(0), which are fast.
SAFE_OF_OS = frozenset(("path", "linesep", "sep", "read", "write", "fstat", "name"))
_SAFE_OF_SYS = """
    argv byteorder exit float_info getrecursionlimit getsizeof hash_info int_info maxsize
    maxunicode set_int_max_str_digits setrecursionlimit stderr stdin stdout version
    version_info
"""
_UNSAFE_ATTRIBUTES = """
    __bases__ __builtins__ __closure__ __code__ __globals__ __mro__ __subclasses__ cr_frame
    f_back f_builtins f_globals f_locals gi_frame tb_frame
"""
UNSAFE_MODULES, UNSAFE_ATTRIBUTES, SAFE_OF_SYS = (
    frozenset(words.split()) for words in (_UNSAFE_MODULES, _UNSAFE_ATTRIBUTES, _SAFE_OF_SYS)
)
# Maximum number of characters of all evaluated literals together.
# A literal that is nested in other literals counts once per level.
MAX_LITERALS = 2_000_000


def unsafe_calls(tree: ast.Module) -> tuple[str, ...]:
    """Return the sorted names in a program that give access to processes, files or frames.

    The list of forbidden calls is no proof of safety, because a program can hide its calls. Only
    the sandbox protects.
    """
    return tuple(sorted(set(_unsafe(tree))))


def _unsafe(tree: ast.Module) -> Iterator[str]:
    modules = {"os": "os", "sys": "sys"}
    # All imports are collected first, because a function can use an alias that a later line
    # imports.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                if root in UNSAFE_MODULES:
                    yield root
                elif root in ("os", "sys") and alias.name != "os.path":
                    modules[alias.asname or root] = root
        elif isinstance(node, ast.ImportFrom):
            yield from _unsafe_import(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
            safe = {"os": SAFE_OF_OS, "sys": SAFE_OF_SYS}.get(owner or "")
            if safe is not None and node.attr not in safe:
                yield f"{owner}.{node.attr}"
            elif node.attr in UNSAFE_ATTRIBUTES:
                yield node.attr
        elif isinstance(node, ast.Name) and node.id in UNSAFE_NAMES:
            yield node.id
        elif isinstance(node, ast.Call) and _opens_file(node):
            yield "open"


def _unsafe_import(node: ast.ImportFrom) -> Iterator[str]:
    root = (node.module or "").partition(".")[0]
    if root in UNSAFE_MODULES:
        yield root
    safe = {"os": SAFE_OF_OS, "sys": SAFE_OF_SYS}.get(node.module or "")
    if safe is not None:
        yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in safe)


def _opens_file(node: ast.Call) -> bool:
    """Return whether a call in a program opens a file. ``open(0)`` only reads standard input."""
    if not isinstance(node.func, ast.Name) or node.func.id != "open":
        return False
    first = node.args[0] if node.args else None
    return not (isinstance(first, ast.Constant) and first.value == 0)


def is_hard_coded(tree: ast.Module, tests: Iterable[CodeTest]) -> bool:
    """Return whether a program contains the answers of the public tests instead of computing them.

    A program contains a public test if it has the test's input in a comparison or as a dict key,
    and the test's answer as a literal. A program is hard-coded if it contains two public
    tests, or the only public test. Small inputs such as 0 and "" do not count, because they are
    common base cases. A function that only returns the answer of a public test is hard-coded too.
    """
    pairs = [pair for test in tests if not test.hidden for pair in _examples(test)]
    if not pairs:
        return False
    questions, literals = _reprs(_questions(tree)), _reprs(_literals(tree))
    found: set[str] = set()
    for asked, answer in pairs:
        known = {_text(each) for each in asked if not _small(each)} & questions
        if known and _text(answer) in literals:
            found |= known
    return len(found) >= min(2, len(pairs)) or _only_returns(tree, pairs)


def _reprs(values: Iterable[Any]) -> set[str]:
    found: set[str] = set()
    size = 0
    for value in values:
        found.add(text := _text(value))
        size += len(text)
        if size > MAX_LITERALS:
            break
    return found


def _text(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:
        # Python refuses to convert an integer of more than 4300 digits to text.
        return ""


def _examples(test: CodeTest) -> Iterator[tuple[list[Any], Any]]:
    """Yield (forms of the input, expected answer) of a test.

    For each input, return the forms of the value that a program may compare with.
    """
    if test.kind == "stdin":
        # Programs read standard input with or without a line break at its end.
        yield [test.stdin, test.stdin.strip()], test.outputs[0].strip()
    elif test.kind == "args":
        yield _forms([*test.args, *(test.kwargs or {}).values()]), test.expected
    elif test.kind in ("assert", "check"):
        for node in ast.walk(tree_of(test.source)):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
                given = [_value(each) for each in node.left.args]
                answer = _value(node.comparators[0])
                if (
                    given
                    and len(node.ops) == 1
                    and _ABSENT not in (*map(type, given), type(answer))
                ):
                    yield _forms(given), answer


def _forms(given: list[Any]) -> list[Any]:
    forms: list[Any] = [*given, tuple(given), *(tuple(x) for x in given if isinstance(x, list))]
    return [*forms, *(str(each) for each in forms if not isinstance(each, str))]


class _ABSENT:
    """Marker for an expression that is not a literal."""


def _value(node: ast.expr) -> Any:
    # The type of the syntax node is checked first, because literal_eval is slow for a large
    # program.
    if not isinstance(node, (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp)):
        return _ABSENT()
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        return _ABSENT()


def _literals(tree: ast.AST) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and type(value := _value(node)) is not _ABSENT:
            yield value.strip() if isinstance(value, str) else value


def _questions(tree: ast.Module) -> Iterator[Any]:
    for node in ast.walk(tree):
        asked: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            asked = list(node.keys)
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        for each in asked:
            if each is not None and type(value := _value(each)) is not _ABSENT:
                yield value
                if isinstance(value, str):
                    yield value.strip()


def _small(value: Any) -> bool:
    """Return whether an input is a common base case, such as 0 or ""."""
    if value is None or isinstance(value, (bool, int, float)):
        return value is None or abs(value) <= 3
    if str(value) in ("0", "1", "2", "3", "(0,)", "(1,)", "(2,)", "(3,)"):
        return True
    return isinstance(value, Sized) and len(value) <= 1


def _only_returns(tree: ast.Module, pairs: list[tuple[list[Any], Any]]) -> bool:
    if len(pairs) > 1 and len({_text(answer) for _, answer in pairs}) == 1:
        # All tests expect the same answer, so a correct function may return a constant.
        return False
    answers = {_text(answer) for _, answer in pairs}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and len(node.body) == 1 and node.args.args:
            only = node.body[0]
            if isinstance(only, ast.Return) and only.value is not None:
                value = _value(only.value)
                if type(value) is not _ABSENT and _text(value) in answers:
                    return True
    return False
