"""Save the demo's fresh model: python examples/reward_model/make_model.py models/tiny"""

from __future__ import annotations

import sys
from pathlib import Path

from assay.init.tiny_model import make_model

if __name__ == "__main__":
    print(make_model(Path(sys.argv[1] if len(sys.argv) > 1 else "models/tiny"), seed=0))
