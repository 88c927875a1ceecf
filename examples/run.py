"""The number pi by throwing darts on all cores, on workers that may die.

python examples/run.py --workers 4 --darts 10000000
"""

from __future__ import annotations

import argparse

import numpy as np

import orca


def throw(darts: int) -> float:
    """Every rank throws its share; all ranks return the same estimate."""
    random = np.random.default_rng(orca.rank())
    x, y = random.random((2, darts // orca.world_size()))
    counts = np.array([np.count_nonzero(x * x + y * y < 1), len(x)])
    inside, thrown = orca.allreduce(counts)
    print(f"I threw {len(x)} darts")
    return float(4 * inside / thrown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, help="one a core by default")
    parser.add_argument("--darts", type=int, default=10_000_000)
    options = parser.parse_args()
    with orca.init_orca_context("local"):
        found = orca.run(throw, (options.darts,), workers=options.workers, on_failure="restart")
    print(f"pi is about {found[0]:.4f}, say {len(found)} workers")
