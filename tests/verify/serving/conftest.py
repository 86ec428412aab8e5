"""What the tests of the service share."""

from collections.abc import Iterator

import planted_lanes
import pytest

from assay.verify.expression import BUILT_IN


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The verifiers of `planted_lanes` under names of built-in ones."""
    for name, place in planted_lanes.NAMES.items():
        monkeypatch.setitem(BUILT_IN, name, place)
    planted_lanes.forget()
    yield
    planted_lanes.release.set()
