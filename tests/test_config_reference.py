"""docs/configuration.md and docs/data_stages.md say what the models of settings say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from assay import config

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "configuration.md"


def test_the_pages_are_current() -> None:
    place = ROOT / "tools" / "config_reference.py"
    spec = importlib.util.spec_from_file_location("config_reference", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for page, text in ((PAGE, tool.reference()), (tool.STAGES_PAGE, tool.data_stages())):
        current = page.read_text(encoding="utf-8") == text
        assert current, "run: python tools/config_reference.py"


def test_every_key_is_on_the_page() -> None:
    section = ""
    found: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if header := re.match(r"## \[(.+)\]", line):
            section = header[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.append(f"{section}.{row[1]}")
    assert found == [key for key, *_ in config.field_help()]


def test_the_example_on_the_page_loads(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    path = tmp_path / "run.toml"
    path.write_text(example[1])
    overridden = config.load(path, ["model.path=out/base", "sampling.top_k="])
    assert overridden.model.path == "out/base"
