"""Files and TOML lines that `assay init` writes. All files are removed if the command fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.config.toml_text import comment, one_line, toml_line
from assay.errors import UserError, message
from assay.host.files import write_atomic
from assay.host.removal import move, move_out_of_sight, remove_file, remove_temporary


@dataclass(slots=True)
class Draft:
    """State of the configuration that `assay init` writes; a context manager.

    written: descriptions of written files. assumed: reported assumptions. values: lines for the
    template. new: written files that did not exist before the command. replaced: temporary name of
    each replaced folder. After an error in the ``with`` block, new files are removed and replaced
    folders are restored.
    """

    kind: str
    file: Path
    written: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    new: list[Path] = field(default_factory=list)
    replaced: dict[Path, Path] = field(default_factory=dict)

    def write(self, file: Path, text: str, what: str) -> None:
        """Write a file, and record its description ``what``."""
        self.new += [] if file.exists() else [file]
        write_atomic(file, text.encode())
        self.written.append(f"{file}: {what}")

    def assume(self, text: str) -> None:
        """Record an assumption, as one line."""
        # The assumption may name a column, tag or file whose name contains line breaks.
        self.assumed.append(one_line(text))

    def make_room(self, folder: Path) -> None:
        """Move a folder of an earlier `assay init` aside; an error moves the folder back."""
        if folder.exists():
            self.replaced[folder] = move_out_of_sight(folder)
        self.new.append(folder)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for path in self.new if kind is not None else ():
            if path.is_dir():
                remove_temporary(move_out_of_sight(path))
            else:
                remove_file(path)
        for path, aside in self.replaced.items():
            if kind is None:
                remove_temporary(aside)
            else:
                move(aside, path)

    def line(self, key: str, value: Any, note: str = "", name: str = "") -> None:
        """Add a line for a key, with a comment. Raises UserError for invalid Unicode."""
        try:
            self.values[name or key] = toml_line(key, value, note)
        except ValueError as error:
            found = f"{one_line(str(value), 80)}, which is not valid Unicode"
            raise UserError(
                message(f"assay init, {key}", found, "a text that TOML can represent")
            ) from error

    def unset(self, key: str, value: Any, note: str) -> None:
        """Add a commented-out line for a key, with an example value."""
        self.values[key] = comment(toml_line(key, value, note))
