"""What the README shows of the code is the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = "assay/training/rl.py"


def test_the_training_step_of_the_readme_is_the_code() -> None:
    """Each function that the block under `assay/training/rl.py` names, word for word."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"\(`{PAGE}`\).*?```python\n(.*?)```", shown, re.DOTALL)
    source = (ROOT / PAGE).read_text(encoding="utf-8")
    functions = {
        node.name: ast.get_source_segment(source, node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    names = [node.name for node in ast.parse(block).body if isinstance(node, ast.FunctionDef)]
    assert names and set(names) <= functions.keys()
    code = "\n\n\n".join(functions[name] or "" for name in names)
    assert block.strip() == code, f"paste this into README.md, under {PAGE}:\n\n{code}\n"
