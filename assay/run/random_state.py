"""The process-wide random generators, as a part of every checkpoint.

Assay's own sampling is keyed and has no state; a user's verifier, rule or model code may use these.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

_FILE = "random.npz"


class GlobalRandomState:
    """Saves and restores the states of `random`, numpy's legacy generator and torch."""

    def save_state(self, folder: Path) -> None:
        """Write the states, without pickle."""
        version, words, gauss = random.getstate()
        _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # pyright: ignore
        states = {
            "python": np.array([version, *words], np.int64),
            "python_gauss": np.array([] if gauss is None else [gauss], np.float64),
            "numpy_keys": keys,
            "numpy_position": np.array([position, has_gauss], np.int64),
            "numpy_gauss": np.array([cached], np.float64),
        }
        if torch := sys.modules.get("torch"):
            states["torch"] = torch.get_rng_state().numpy()
            if torch.cuda.is_initialized():
                for n, state in enumerate(torch.cuda.get_rng_state_all()):
                    states[f"cuda_{n}"] = state.cpu().numpy()
        np.savez(folder / _FILE, **states)

    def load_state(self, folder: Path) -> None:
        """Restore the states; devices that are not there are passed over."""
        with np.load(folder / _FILE) as states:
            version, *words = states["python"].tolist()
            gauss = states["python_gauss"].tolist()
            random.setstate((version, tuple(words), gauss[0] if gauss else None))
            position, has_gauss = states["numpy_position"].tolist()
            cached = float(states["numpy_gauss"][0])
            np.random.set_state(("MT19937", states["numpy_keys"], position, has_gauss, cached))
            torch = sys.modules.get("torch")
            if torch and "torch" in states:
                torch.set_rng_state(torch.from_numpy(states["torch"].copy()))
                if torch.cuda.is_initialized():
                    for n in range(torch.cuda.device_count()):
                        if f"cuda_{n}" in states:
                            torch.cuda.set_rng_state(
                                torch.from_numpy(states[f"cuda_{n}"].copy()), n
                            )
