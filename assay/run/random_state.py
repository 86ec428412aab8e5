"""State of the process-wide random generators, which every checkpoint contains.

Assay derives its own random numbers from keys, and needs no state of a random generator. User code,
such as a verifier, a guard rule or a model, may use process-wide random generators.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from assay.host.accelerator import accelerator_type, random_states, restore_random_states

_FILE = "random.json"


class GlobalRandomState:
    """Saves and restores the states of `random`, NumPy's legacy generator, and torch."""

    @staticmethod
    def seed(seed: int) -> None:
        """Seed `random`, NumPy's legacy generator and, if torch is loaded, torch."""
        # A run that is killed before its first checkpoint then restarts with equal random numbers.
        random.seed(seed)
        # NumPy's legacy generator accepts only 32-bit seeds.
        np.random.seed(seed % 2**32)
        if torch := sys.modules.get("torch"):
            torch.manual_seed(seed)

    def state_copy(self) -> SavedRandomState:
        """Copy the current states."""
        # NumPy's legacy state has only integers and a float, which JSON stores exactly.
        _, keys, *rest = np.random.get_state(legacy=True)
        states: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": ["MT19937", np.asarray(keys).tolist(), *rest],
        }
        if torch := sys.modules.get("torch"):
            states["torch"] = _hex(torch.get_rng_state())
            if found := random_states():
                kind, of_devices = found
                states[kind] = [_hex(state) for state in of_devices]
        return SavedRandomState(states)

    def save_state(self, folder: Path) -> None:
        """Write the states as JSON. Equal random states give equal files, byte for byte."""
        self.state_copy().save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Restore the states. The saved random states of devices that this machine lacks are
        ignored.
        """
        states = json.loads((folder / _FILE).read_text())
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *rest))
        torch = sys.modules.get("torch")
        if torch and "torch" in states:
            torch.set_rng_state(_tensor(torch, states["torch"]))
        if torch and (kind := accelerator_type()):
            restore_random_states([_tensor(torch, state) for state in states.get(kind, ())])


class SavedRandomState(GlobalRandomState):
    """Copy of the random states at one point in time."""

    def __init__(self, states: dict[str, Any]) -> None:
        self._states = states

    def save_state(self, folder: Path) -> None:
        """Write the states."""
        (folder / _FILE).write_text(json.dumps(self._states))


def _hex(state: Any) -> str:
    return state.cpu().numpy().tobytes().hex()


def _tensor(torch: Any, text: str) -> Any:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
