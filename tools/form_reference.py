"""Write the table of row forms in docs/data.md: ``python tools/form_reference.py``.

The table is written between two marks, from `assay.data.forms`. A test fails if it is out of date.
"""

from __future__ import annotations

from pathlib import Path

from assay.data.forms import ASSAY, FORMS, Form

PAGE = Path(__file__).resolve().parent.parent / "docs" / "data.md"
BEGIN = "<!-- Written by tools/form_reference.py from assay/data/forms.py: change it there. -->\n"
END = "<!-- End of the written table. -->\n"


def table() -> str:
    """Return the table of forms, one row each."""
    lines = [
        "| form | keys | verifier | data sets (licence) | refused |",
        "|---|---|---|---|---|",
        *(_line(form) for form in FORMS if form is not ASSAY),
    ]
    return "\n".join(lines) + "\n"


def _line(form: Form) -> str:
    keys = ", ".join(" or ".join(f"`{one}`" for one in key.split("|")) for key in form.keys)
    verifier = ", ".join(f"`{name}`" for name in form.verifier.split(", "))
    sets = "; ".join(f"{name} ({licence})" for name, licence in form.sets)
    but = ", except `math`" if "math" in form.verifier.split(", ") else ""
    mark = f" (set by the reader{but})" if form.in_row else ""
    return f"| {form.name} | {keys} | {verifier}{mark} | {sets} | {form.refuses} |"


def page(text: str) -> str:
    """Return a page with the table between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{PAGE} lacks the marks of the table"
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}")
