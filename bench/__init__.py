"""Measurements: each is one command that prints its figures."""

import os
from pathlib import Path

DATA = Path(os.environ.get("ASSAY_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
"""Where real data lies, as for the tests."""
