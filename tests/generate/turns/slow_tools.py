"""A calculator that ends its whole process at one of its calls, where the environment says so."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from assay.generate.turns.calculator import CALCULATOR as PLAIN
from assay.generate.turns.tool import RunCall

_numbers = count(1)


def _open() -> RunCall:
    plain = PLAIN.open()

    def run(arguments: Mapping[str, Any]) -> str:
        time.sleep(0.002)
        if os.environ.get("SLOW_TOOLS_END_AT") == str(next(_numbers)):
            os._exit(9)
        return plain(arguments)

    return run


CALCULATOR = replace(PLAIN, open=_open)
