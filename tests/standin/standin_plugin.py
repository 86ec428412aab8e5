"""A pytest plugin that registers the stand-in device before any test: ``-p standin_plugin``."""

from __future__ import annotations

import pytest
import standin


def pytest_configure(config: pytest.Config) -> None:
    standin.begin_process()
    from assay.model import rates

    # Products that occupy a GPU take minutes here.
    rates.ACCELERATOR = 1
