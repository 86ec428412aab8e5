"""Write docs/planning.md: ``python tools/planning_reference.py``.

The text comes from tools/planning_source.md, and the table of rules from assay/plan/methods.toml. A
test fails if the page is out of date.
"""

from __future__ import annotations

from pathlib import Path

from assay.plan.decision import LIMITS, RULES, TITLES
from assay.plan.facts import CHECKED, LEARNED, ONLINE

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "planning.md"
SOURCE = ROOT / "tools" / "planning_source.md"
NOTE = (
    "<!-- Written by tools/planning_reference.py from tools/planning_source.md: edit that. -->\n\n"
)
REWARDS = {"CHECKED": CHECKED, "LEARNED": LEARNED, "ONLINE": ONLINE}


def rules() -> str:
    """Return the table of rules, in the order in which they are applied."""
    lines = ["| rule | holds where | recommends |", "|---|---|---|"]
    for row in RULES:
        holds = ", ".join(map(words, row.when.split(" and "))) if row.when else "no other does"
        lines.append(f"| `{row.rule}` | {holds} | {TITLES[row.method]} (`{row.method}`) |")
    return "\n".join(lines)


def words(comparison: str) -> str:
    """Format one comparison of a condition: limits become numbers, and kinds of rewards become
    lists."""
    match comparison.split():
        case ["not", name]:
            return f"not `{name}`"
        case [name]:
            return f"`{name}`"
        case [name, *_, kinds] if " in " in comparison:
            accepted = [f"`{one}`" for one in REWARDS.get(kinds) or kinds.split("|")]
            is_in = "is not one of" if " not in " in comparison else "is"
            return f"`{name}` {is_in} {' / '.join(accepted)}"
        case [name, sign, limit]:
            value = LIMITS.get(limit)
            shown = limit if value is None else f"{value:.0%}" if value < 1 else f"{value:g}"
            return f"`{name}` {sign} {shown}"
    raise ValueError(comparison)


def page() -> str:
    """Return the complete text of the page."""
    return NOTE + SOURCE.read_text(encoding="utf-8").replace("{{rules}}", rules())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
