"""Find the last Python program in a completion."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from assay.types import Completion

# Maximum characters of a program. A text with more characters than this is not parsed.
MAX_PROGRAM = 100_000
PYTHON_LABELS = frozenset(("", "py", "py2", "py3", "ipython", "{python}", "{.python}"))

# All repetitions are possessive, because backtracking over very long lines is too slow.
_FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`]*+")
# Models also open a labeled block at the end of a sentence, as in ``Here it is: ```python``.
_LATE_FENCE = re.compile(
    r"()(?=[ \t]*+[^\s`])[^`]*+(`{3,}+)[ \t]*+((?:python|py)[\w.]*+)[ \t]*+", re.IGNORECASE
)
_INDENTED = re.compile(r"(?: {4}|\t)")


@dataclass(frozen=True, slots=True)
class Program:
    """An extracted program.

    text: the whole program, which can begin with the row's code.
    written: the part of `text` that the completion contains.
    place: description of the program's place in the completion, such as ``fenced block``.
    tree: syntax tree. If the program does not compile, the tree is None.
    fault: reason why the program does not compile, or "".
    """

    text: str
    written: str
    place: str
    tree: ast.Module | None
    fault: str = ""


def find_program(
    completion: Completion, entry_point: str = "", prompt_code: str = ""
) -> Program | None:
    """Return the program outside the think block; None if a completion has no program.

    The program is the last fenced block that is labeled as Python or unlabeled. A block without a
    closing fence extends to the end of the text. A text without a fence is the program if the whole
    text is Python. In a text that is not Python, the last indented block is the program. With
    ``prompt_code`` the program continues the prompt's code. If a text does not define
    ``entry_point``, the text is the body of the function that the prompt leaves open.
    """
    text = completion.answer_text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    head = prompt_code.replace("\r\n", "\n")
    block = find_block(text)
    if block is not None:
        return _join(block, head, entry_point, "fenced block")
    if not text.strip():
        return None
    if head and text[:1] in " \t":
        continued = _program(head.rstrip("\n") + "\n" + text, text, "continuation")
        if continued.tree is not None:
            return continued
    if is_program(text):
        return _join(text, head, entry_point, "whole text")
    block = last_indented_block(text)
    return None if block is None else _join(block, head, entry_point, "indented block")


def find_block(text: str) -> str | None:
    """Return the content of the last fenced block that can contain Python, or None."""
    found: str | None = None
    lines: list[str] = []
    indent, fence, label = "", "", ""
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line) or (None if fence else _LATE_FENCE.fullmatch(line))
        if match and fence and len(match[1]) >= len(indent) + 4:
            # A fence with much more indentation is inside a string of the program.
            match = None
        if match and not fence:
            indent, fence, label, lines = match[1], match[2], match[3], []
        elif match and match[2][0] == fence[0] and len(match[2]) >= len(fence) and not match[3]:
            found = _inside(lines, label, found)
            fence = ""
        elif match and match[2] == fence and is_python(match[3]):
            # An unclosed block ends where the next Python block begins.
            found = _inside(lines, label, found)
            indent, fence, label, lines = match[1], match[2], match[3], []
        elif fence:
            lines.append(line)
    return _inside(lines, label, found) if fence else found


def is_python(label: str) -> bool:
    """Return whether a block with this label can contain Python, such as ``python3.11``."""
    return label.lower() in PYTHON_LABELS or label.lower().startswith("python")


def _inside(lines: list[str], label: str, before: str | None) -> str | None:
    inside = textwrap.dedent("\n".join(lines)) + "\n"
    if not is_python(label) or (not label and before is not None and not is_program(inside)):
        # An unlabeled block after the program is often the program's output.
        return before
    return inside


def last_indented_block(text: str) -> str | None:
    """Return the last run of lines indented by four, after an empty line or at the start."""
    found: str | None = None
    run: list[str] = []
    open_for_code = True
    for line in [*text.split("\n"), "end"]:
        blank = not line.strip()
        if _INDENTED.match(line) and not blank and (run or open_for_code):
            run.append(line)
        elif blank and run:
            run.append("")
        elif not blank and run:
            found = textwrap.dedent("\n".join(run)).strip("\n") + "\n"
            run = []
        open_for_code = blank
    return found


def is_program(text: str) -> bool:
    """Return whether a text is Python with a definition, a call or another statement.

    Single words can parse as Python expressions, so plain expressions do not count as programs.
    """
    tree, _ = parse(text)
    return tree is not None and any(
        not isinstance(node, (ast.Expr, ast.AnnAssign))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        for node in tree.body
    )


def parse(text: str) -> tuple[ast.Module | None, str]:
    """Return (syntax tree, "") of a text, or (None, reason) if the text does not parse."""
    if len(text) > MAX_PROGRAM:
        return None, f"SyntaxError: more than {MAX_PROGRAM} characters"
    try:
        with warnings.catch_warnings():
            # An invalid escape sequence in the program would print a SyntaxWarning.
            warnings.simplefilter("ignore")
            # The text is only parsed, because compilation can take time exponential in the nesting
            # depth.
            tree = ast.parse(text)
    except SyntaxError as error:
        return None, f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return None, f"{type(error).__name__}: {error}"
    return tree, ""


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names bound at the top level of a module."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    if not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from bound_names(child)


def last_function(tree: ast.Module | None, preferred: str = "") -> str:
    """Return the name of a module's last public function, or "".

    preferred: name to return if the module has a function of this name. ``main`` and the program's
        own tests are returned only if there is no other function.
    """
    body = tree.body if tree is not None else []
    names = [n.name for n in body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    public = [name for name in names if not name.startswith(("_", "test")) and name != "main"]
    return preferred if preferred in names else (public or names or [""])[-1]


def _program(text: str, written: str, place: str) -> Program:
    tree, fault = parse(text)
    return Program(text, written, place, tree, fault)


def _join(written: str, head: str, entry_point: str, place: str) -> Program:
    alone = _program(written, written, place)
    # In Python, no statement may precede a __future__ import.
    if not head or "from __future__" in written:
        return alone
    root = entry_point.partition(".")[0].removesuffix("()")
    if alone.tree is not None and (not root or root in bound_names(alone.tree)):
        whole = _program(head.rstrip("\n") + "\n\n\n" + written, written, place)
        return alone if whole.tree is None else whole
    body = textwrap.indent(textwrap.dedent(written), "    ")
    for tail in (body, "    " + written.lstrip(), written):
        whole = _program(head.rstrip("\n") + "\n" + tail, written, place)
        if whole.tree is not None:
            return whole
    return alone
