"""Benches: commands that measure and print the figures of the project."""

import os
from pathlib import Path

DATA = Path(os.environ.get("ASSAY_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
"""Where real data lies, as for the tests."""
