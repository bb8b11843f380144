"""``python -m collections_engine.simulator``: a program of its own, beside the engine."""

import os

from collections_engine.simulator.options import main

if __name__ == "__main__":
    raise SystemExit(main(None, os.environ))
