"""The digits that come with lcprune: small enough to carry, real enough to learn from.

`digits.npz` holds the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI
Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), in the order of scikit-learn's `load_digits`
(BSD-3-Clause), which results on record were made with.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
from numpy.typing import NDArray


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """1,797 handwritten digits.

    Returns:
        Images (1797, 8, 8), each pixel from 0 to 16, and their labels (1797,).
    """
    with resources.files("lcprune.data").joinpath("digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        return stored["images"], stored["labels"].astype(np.int64)
