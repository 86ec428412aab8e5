"""Common parts of the viewer's pages: links, navigation, and the content security policy.

Every text of a run or a model passes through `safe`. Pages load nothing from other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

from assay.report.rollout_pages import LABELS, safe

# Texts of models are escaped.
# The content security policy would block scripts even if an escape were missing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # The URL contains the access token, which a Referer header would reveal.
    "referrer-policy": "no-referrer",
    # Other websites in the same browser must not embed pages or files of the viewer.
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# With no-referrer, browsers would replace the origin of a form by "null", which the server refuses.
# With same-origin, they still send no Referer header to other servers.
FORM_HEADERS = {**HEADERS, "referrer-policy": "same-origin"}
# Each status also has a symbol, for readers who cannot distinguish the colors.
SYMBOLS = {"passed": "✓", "failed": "✗", "not_judged": "?"}

LABEL_PAGES = {
    "compare": "compare completions",
    "grade": "grade completions",
    "steps": "mark steps",
}
"""Names of the pages for labelling, by kind of label."""

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Assay</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{base}/assets/report.css">
<link rel="stylesheet" href="{base}/assets/view.css">
</head>
<body data-live="{live}">
<a class="skip" href="#content">Skip to the content</a>
<header class="bar-top"><nav aria-label="Path">{path}</nav>
<button type="button" id="help-button" aria-expanded="false" aria-controls="help">keys</button>
<div id="help" hidden><p><kbd>j</kbd> <kbd>k</kbd> next, previous link of the list ·
<kbd>Enter</kbd> open · <kbd>u</kbd> up · <kbd>n</kbd> <kbd>p</kbd> next, previous page or step ·
<kbd>]</kbd> <kbd>[</kbd> next, previous sibling · <kbd>c</kbd> next token color ·
<kbd>/</kbd> search · <kbd>?</kbd> this list · on label pages, the keys on the buttons, and
<kbd>←</kbd> <kbd>→</kbd> the better side · <kbd>z</kbd> undo</p></div></header>
<main id="content" class="view">
{body}
</main>
<script src="{base}/assets/charts.js"></script>
<script src="{base}/assets/view.js"></script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Links:
    """Builder of the viewer's URLs.

    base: URL path with the access token. labels: whether the viewer has pages for labelling.
    """

    base: str
    labels: bool = False

    def to(self, page: str, /, **parameters: Any) -> str:
        """Return the URL of a page, escaped for an HTML attribute. Empty parameters are omitted."""
        return escape(self.url(page, **parameters))

    def url(self, page: str, /, **parameters: Any) -> str:
        """Return the URL of a page, for an HTTP header."""
        asked = {
            name: value for name, value in parameters.items() if value not in (None, "", False)
        }
        said = {name: "1" if value is True else value for name, value in asked.items()}
        # A file name or an id may contain surrogates, which UTF-8 cannot encode.
        query = urlencode(said, doseq=True, errors="replace")
        return f"{self.base}/{page}{f'?{query}' if query else ''}"

    def a(self, text: str, page: str, key: str = "", /, **parameters: Any) -> str:
        """Return an HTML link. text: HTML of the link text. key: keyboard shortcut."""
        short = f' data-key="{key}" aria-keyshortcuts="{key}"' if key else ""
        return f'<a href="{self.to(page, **parameters)}"{short}>{text}</a>'

    def label_ways(self, run: str, **only: Any) -> list[str]:
        """Return links to the label pages of a run, or of one group; [] if nobody labels here."""
        found = LABEL_PAGES.items() if self.labels else ()
        return [self.a(name, "label", run=run, kind=kind, **only) for kind, name in found]

    def page(self, title: str, path: Iterable[str], body: str, live: str = "") -> str:
        """Return a complete HTML page.

        path: links of the navigation, from the outermost. body: HTML of the content. live: URL from
        which the page's script fetches new data.
        """
        steps = [f'<a href="{escape(self.base)}/" class="brand">Assay</a>', *path]
        return _FRAME.format(
            title=safe(title), base=escape(self.base), path=" / ".join(steps), body=body, live=live
        )


def notices(faults: Sequence[str]) -> str:
    """Render a list of faults, such as damaged files; empty without faults."""
    if not faults:
        return ""
    items = "".join(f"<li>{safe(fault)}</li>" for fault in faults)
    return f'<div class="missing" role="status"><b>Not shown:</b><ul>{items}</ul></div>'


def badge(status: str) -> str:
    """Render the status of a rollout as a colored label."""
    label = LABELS.get(status, status)
    kind = status if status in LABELS else "not_judged"
    return f'<span class="badge {kind}">{SYMBOLS.get(status, "?")} {safe(label)}</span>'


def number(value: float | None, form: str = ".3g") -> str:
    """Format a number with a typographic minus sign; empty for None and NaN."""
    if value is None or value != value:
        return ""
    return f"{value:{form}}".replace("-", "\N{MINUS SIGN}")


def select(name: str, label: str, choices: Mapping[str, str], chosen: str) -> str:
    """Render a drop-down list. choices: labels by value. chosen: the selected value."""
    options = "".join(
        f'<option value="{safe(value)}"{" selected" if value == chosen else ""}>'
        f"{safe(text)}</option>"
        for value, text in choices.items()
    )
    return f'<select name="{name}" aria-label="{label}">{options}</select>'
