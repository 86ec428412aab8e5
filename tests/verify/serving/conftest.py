"""What the tests of the service share."""

from collections.abc import Iterator

import planted_verifiers
import pytest

from assay.verify.expression import BUILT_IN


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The verifiers of `planted_verifiers` under names of built-in ones."""
    for name, place in planted_verifiers.NAMES.items():
        monkeypatch.setitem(BUILT_IN, name, place)
    planted_verifiers.forget()
    yield
    planted_verifiers.release.set()
