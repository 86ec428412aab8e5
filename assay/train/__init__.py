"""Training loops. Calling the package itself trains: ``assay.train("run.toml")``."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _TrainPackage(ModuleType):
    """``assay.train`` is both this package and, as every user expects, the function that trains."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Train; see `assay.train.api.train` for arguments, result and errors."""
        from assay.train.api import train

        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _TrainPackage
