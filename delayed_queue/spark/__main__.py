"""``python -m delayed_queue.spark``, and the program that spark-submit is given."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # For a script this directory comes first on the path, where its names shadow other modules.
    here = str(Path(__file__).parent)
    sys.path[:] = [each for each in sys.path if each != here]
    from delayed_queue.spark.pipeline.cli import main

    sys.exit(main(sys.argv[1:]))
