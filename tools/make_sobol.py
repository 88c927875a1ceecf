#!/usr/bin/env python3
"""Writes src/tune/joe_kuo.inc: the direction numbers of Joe and Kuo (2008) for the first dimensions.

    .venv/bin/python tools/make_sobol.py

They are read from scipy, which has them as data. Each dimension is its primitive polynomial, with a bit for every
coefficient, and as many first direction numbers as the polynomial has degrees.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.stats

DIMENSIONS = 1111
TARGET = Path(__file__).resolve().parents[1] / "src/tune/joe_kuo.inc"


def main() -> None:
    table = np.load(Path(scipy.stats.__file__).parent / "_sobol_direction_numbers.npz")
    lines = ["// Written by tools/make_sobol.py."]
    # The first dimension is van der Corput's and has no polynomial.
    for polynomial, first in zip(
        table["poly"][1:DIMENSIONS].tolist(), table["vinit"][1:DIMENSIONS].tolist(), strict=True
    ):
        degree = polynomial.bit_length() - 1
        lines.append("".join(f"{number}," for number in (polynomial, *first[:degree])))
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
