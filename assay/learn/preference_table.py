"""The preference methods of ``preferences.toml``: each a named setting, with its paper.

What a row says is computed in `assay.learn.preference_losses`. Its fields are those of
`assay.config.preference`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.config.preference import Preference
from assay.config.row import choose_row, read_rows

PREFERENCES = read_rows(Preference, Path(__file__).with_name("preferences.toml"))


def preference(name: str, **overrides: Any) -> Preference:
    """Return a row of the table, or the object ``package.module:object``, with fields replaced.

    An override that is None leaves the row as it is. Raises ConfigError for a name or a field that
    does not exist.
    """
    return choose_row(PREFERENCES, Preference, "preference.method", name, overrides)
