"""Build the source package, and from it the wheel: python tools/dist.py dist

Both are built in a copy of the checkout, so that they contain no files of an earlier build. The
wheel is built from the source package, which shows that the source package is complete.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "models")
BACKEND = (
    "import sys; from setuptools import build_meta; "
    "print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
)


def build(kind: str, checkout: Path, out: Path) -> Path:
    """Return the file that setuptools builds with ``build_sdist`` or ``build_wheel``."""
    command = [sys.executable, "-c", BACKEND, kind, str(out)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{kind} failed:\n{done.stdout}{done.stderr}")
    return out / done.stdout.splitlines()[-1]


def main(out: Path) -> None:
    """Write both files to ``out`` and print their names."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        source = build("build_sdist", copy, out.resolve())
        print(source)
        with tarfile.open(source) as archive:
            archive.extractall(scratch, filter="data")
        unpacked = Path(scratch) / source.name.removesuffix(".tar.gz")
        print(build("build_wheel", unpacked, out.resolve()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
