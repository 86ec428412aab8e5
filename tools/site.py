"""Build the pages as a site in build/docs/site: ``make docs``, or ``python tools/site.py``.

All pages keep their paths and links. A link to a line of code leads to a page that shows the file,
so that the site needs no repository server. The command needs the extra ``docs``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ROOT / "tools" / "site.toml"
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".c": "c", ".md": "markdown"}
IMAGES = (".png", ".svg")
FORMULAS = """\
window.MathJax = {
  tex: { inlineMath: [["\\\\(", "\\\\)"]], displayMath: [["\\\\[", "\\\\]"]] },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
};
"""


def pages() -> list[Path]:
    """Return the paths of all pages of the project, README first."""
    folders = [ROOT / name / "README.md" for name in ("examples", "bench", "studies")]
    top = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *folders]


def write_sources(folder: Path) -> None:
    """Write every page, and every file that a page links to, below ``folder``."""
    linked: set[Path] = set()
    for page in pages():
        target = folder / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_links(page, linked), encoding="utf-8")
    for file in sorted(linked):
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in IMAGES:
            shutil.copy(file, target)
        else:
            target.with_name(f"{file.name}.md").write_text(shown(file), encoding="utf-8")
    script = folder / "javascripts" / "formulas.js"
    script.parent.mkdir(exist_ok=True)
    script.write_text(FORMULAS, encoding="utf-8")


def with_links(page: Path, linked: set[Path]) -> str:
    """Return a page whose links to files point to the files' pages. These files are added to
    ``linked``."""
    text = page.read_text(encoding="utf-8")
    known = set(pages())

    def lead(found: re.Match[str]) -> str:
        link, _, anchor = found[2].partition("#")
        if not link or re.match(r"[a-z]+:", link):
            return found[0]
        file = (page.parent / link).resolve()
        if file.is_dir():
            file /= "README.md"
        place = os.path.relpath(file, page.parent)
        if file in known:
            return f"{found[1]}{place}{f'#{anchor}' if anchor else ''}{found[3]}"
        linked.add(file)
        if file.suffix in IMAGES:
            return found[0]
        line = re.sub(r"^L(\d+)$", r"__codelineno-0-\1", anchor)
        return f"{found[1]}{place}.md{f'#{line}' if line else ''}{found[3]}"

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(lead, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, LINK.sub(lead, text[last:])])


def shown(file: Path) -> str:
    """Return a page that shows a file, with an anchor for each line."""
    text = file.read_text(encoding="utf-8")
    fence = "`" * (1 + max([2, *map(len, re.findall(r"`+", text))]))
    language = LANGUAGES.get(file.suffix, "text")
    name = file.relative_to(ROOT)
    return f'# {name}\n\n{fence} {{ .{language} linenums="1" }}\n{text}\n{fence}\n'


def build(work: Path) -> Path:
    """Build the site below ``work`` and return its folder. Raises CalledProcessError."""
    sources = work / "pages"
    shutil.rmtree(work, ignore_errors=True)
    write_sources(sources)
    folders = 'docs_dir = "pages"\nsite_dir = "site"\n'
    text = SETTINGS.read_text(encoding="utf-8").replace("[project]\n", f"[project]\n{folders}", 1)
    (work / "zensical.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"]
    subprocess.run(command, cwd=work, check=True)
    return work / "site"


if __name__ == "__main__":
    try:
        import zensical  # noqa: F401
    except ImportError:
        sys.exit('tools/site.py: needs zensical; run: pip install -e ".[docs]"')
    print(f"open {build(ROOT / 'build' / 'docs') / 'index.html'}")
