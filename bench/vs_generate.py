"""Assay's engine and Transformers' `generate` on the same model, prompts and lengths.

python -m bench.vs_generate --model DIR [--natural] [--json]
python -m bench.vs_generate --workload demo
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import generation
from bench.processes import ROOT


def add_peer(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the peer's environment: by default our own."""
    parser.add_argument("--python", type=Path, default=Path(sys.executable))


def peer_of(options: argparse.Namespace) -> generation.Peer:
    """Return Transformers."""
    script = ROOT / "bench" / "peers" / "transformers_generate.py"
    return generation.Peer("Transformers", options.python, script, {})


if __name__ == "__main__":
    generation.main(__doc__ or "", add_peer, peer_of)
