"""The pages: no link is dead, every command that they show is accepted, every configuration loads."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main

from assay import config
from assay.cli.command import app
from assay.cli.console import MOVED
from assay.recipes.file import read_recipe
from assay.scale.route_config import RouteConfig
from assay.sweep.file import SweepSection, read_sweep

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    + [*(ROOT / "docs").rglob("*.md")]
    + [ROOT / folder / "README.md" for folder in ("examples", "bench", "studies")]
)
FENCE = re.compile(r"^(`{3,}|~{3,})(\w*)[^\n]*\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
PLACEHOLDERS = {"COMMAND"}
SOURCES = [
    *(path for path in PAGES if path.name != "CHANGELOG.md"),
    *(path for folder in ("assay", "bench", "tools") for path in (ROOT / folder).rglob("*.py")),
    *(ROOT / "changes").glob("+*.md"),
]
OWN_FILE = re.compile(r"`((?:assay|tests|bench|studies|tools|docs|examples)/[\w/.*-]+)`")
# Names of one word as `drift` are words of a text too: there only after `assay`.
OLD_COMMAND = re.compile(
    rf"\bassay (?:{'|'.join(MOVED)})\b(?!-)|(?<!\w)(?:{'|'.join(n for n in MOVED if '-' in n)})\b"
)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_every_file_that_a_text_names_is_there() -> None:
    missing = [
        f"{source.relative_to(ROOT)}: {name}"
        for source in SOURCES
        for name in OWN_FILE.findall(read(source))
        if not any(ROOT.glob(name.rstrip("/"))) and "NAME" not in name
    ]
    assert not missing


def test_no_text_names_a_command_by_its_earlier_name() -> None:
    table = ROOT / "assay" / "cli" / "console.py"
    stale = [
        f"{source.relative_to(ROOT)}: {name}"
        for source in SOURCES
        if source != table
        for name in OLD_COMMAND.findall(read(source))
    ]
    assert not stale
    assert OLD_COMMAND.findall("`assay report RUN`, `compare-runs`, `assay run drift`") == [
        "assay report",
        "compare-runs",
    ]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    made: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", read(page)), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = found[slug] = found.get(slug, -1) + 1
        made.add(f"{slug}-{number}" if number else slug)
    return made


def broken(page: Path, link: str) -> str:
    """Return what is wrong with a link of a page; nothing where it leads somewhere."""
    if re.match(r"[a-z]+:", link):
        return ""
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    if not target.exists():
        return f"{link}: no such file"
    if not anchor:
        return ""
    if line := re.fullmatch(r"L(\d+)", anchor):
        return "" if int(line[1]) <= len(read(target).splitlines()) else f"{link}: no such line"
    return "" if target.suffix == ".md" and anchor in anchors(target) else f"{link}: no such anchor"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_no_link_is_dead(page: Path) -> None:
    links = LINK.findall(CODE.sub(lambda code: " " * len(code[0]), FENCE.sub("", read(page))))
    links += re.findall(r"\[`[^`]*`\]\(([^)\s]+)\)", FENCE.sub("", read(page)))
    assert not [wrong for link in links if (wrong := broken(page, link))]


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page, really\n\n## `Code` & more\n")
    assert not broken(page, "#a-page-really") and not broken(page, "page.md#code--more")
    assert broken(page, "#a-page") and broken(page, "other.md") and broken(page, "page.md#L9")


@cache
def defined(file: Path) -> set[str]:
    """Return the names that a file defines, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(read(file))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_every_linked_symbol_is_in_its_file() -> None:
    linked = [
        (page, symbol, (page.parent / link).resolve())
        for page in PAGES
        for symbol, link in re.findall(r"\[`(\w+(?:\.\w+)*)`\]\(([^)\s]+\.py)\)", read(page))
    ]
    assert len(linked) > 100
    assert not [
        f"{page.name}: {symbol} is not in {file.name}"
        for page, symbol, file in linked
        if not {*symbol.split(".")} <= defined(file)
    ]


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(read(index))
    }
    missing = {page for page in PAGES if "studies" not in page.parts} - linked
    assert missing <= {index, ROOT / "README.md"}, f"name these in docs/README.md: {missing}"


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line of code that calls `assay`, and each piece of inline code that does (True)."""
    for line in text.splitlines():
        if found := re.match(r"(?: {4,}|\$ )?((?:assay|python -m assay\.cli) .*)", line):
            yield found[1], False
    for _, code in CODE.findall(FENCE.sub("", text)):
        words = " ".join(code.split())
        if re.match(r"assay [a-z-]+ \S", words):
            yield words, True


def shown() -> list[tuple[str, str, bool]]:
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    return [(str(page.relative_to(ROOT)), *one) for page in pages for one in commands(read(page))]


@cache
def command_tree() -> click.Group:
    """Return the commands of the command line, whose making takes a tenth of a second."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    return group  # type: ignore[return-value]


def refusal(line: str, in_text: bool = False) -> str:
    """Return why the command line would refuse a line; nothing where it parses.

    in_text: it is a part of a sentence, which may leave out what a command needs.
    """
    words = shlex.split(re.sub(r"^python -m assay\.cli", "assay", line), comments=True)
    name, *arguments = words[1:]
    known = command_tree().commands
    if name in PLACEHOLDERS or "--help" in arguments:
        return ""
    if name not in known:
        return f"there is no command {name}"
    command = known[name]
    if arguments and arguments[0] in getattr(command, "commands", {}):
        command, (name, *arguments) = command.commands[arguments[0]], arguments
    try:
        command.make_context(name, list(arguments))
    except Exception as error:  # of click, or of the copy of it that typer has
        if in_text and type(error).__name__ == "MissingParameter":
            return ""
        return f"{type(error).__name__}: {error}"
    return ""


def test_every_command_of_the_pages_is_accepted() -> None:
    lines = shown()
    assert len(lines) > 40
    wrong = [
        f"{page}: {line}: {why}" for page, line, in_text in lines if (why := refusal(line, in_text))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_page_of_commands_names_every_command() -> None:
    page = read(ROOT / "docs" / "commands.md")
    known = command_tree().commands
    assert not [name for name in known if f"`assay {name}" not in page]


def test_a_command_that_is_not_accepted_is_found() -> None:
    assert not refusal("assay train run.toml --set rl.steps=3   # a comment")
    assert refusal("assay train run.toml --no-such-option")
    assert refusal("assay gate RUN") and refusal("assay tarin run.toml")
    assert refusal("assay recipe run --no-such-option") and not refusal("assay recipe show r1_zero")


def blocks(language: str) -> list[tuple[str, str]]:
    pages = [page for page in PAGES if page.parent.name != "studies"]
    return [
        (str(page.relative_to(ROOT)), body)
        for page in pages
        for _, kind, body in FENCE.findall(read(page))
        if kind == language
    ]


def test_every_configuration_of_the_pages_loads() -> None:
    """A part of a configuration is completed: with a model, and with a stage."""
    shown_here = blocks("toml")
    assert len(shown_here) >= 4
    for page, text in shown_here:
        tree = tomllib.loads(text)
        if "stage" in tree:
            continue  # a recipe: tests/recipes/test_built_in.py runs it
        if "arms" in tree:
            config.read_section(SweepSection, tree, page)
            continue
        if "route" in tree:
            config.read_section(RouteConfig, tree, page)
            continue
        tree.setdefault("model", {"path": "m"})
        if not set(config.STAGES) & tree.keys():
            tree["rl"] = {}
        if "rl" in tree:
            tree.setdefault("data", {}).setdefault("train", ["problems.jsonl"])
        config.parse(tree, where=page)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda p: p.name)
def test_every_example_loads_and_is_listed(path: Path) -> None:
    tree = tomllib.loads(read(path))
    if "stage" in tree:
        assert read_recipe(path).stages
    elif "arms" in tree:
        assert read_sweep(path).settings.arms
    else:
        config.load(path)
    listed = read(ROOT / "examples" / "README.md")
    assert path.name in listed or f"{path.parent.name}/" in listed


def test_every_python_block_of_the_pages_compiles() -> None:
    """docs/python.md shows signatures, which are no programs."""
    faults: list[str] = []
    for page, text in blocks("python"):
        try:
            ast.parse(text)
        except SyntaxError as error:
            faults += [] if page == "docs/python.md" else [f"{page}: {error}"]
    assert not faults
