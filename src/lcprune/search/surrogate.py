"""A Gaussian process: from the losses of candidates that were judged, what to expect of others."""

from __future__ import annotations

import itertools
import math

import numpy as np

from lcprune.search.space import FloatArray

_LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # that a loss changes over, times the square root of the number of groups
_SLOPES = (0.0, 0.1, 1.0)  # variance of a straight line under it
_NOISES = (1e-3, 1e-2, 1e-1)  # variance of what widths do not explain
_SWEEPS = 3  # over the neighbours of the settings so far
_NEW = 0.05  # share of values that are new since the settings were looked for
_TAIL = 3.0  # losses count at most as so many times as far from the median as the best one, in logarithms

_erf = np.vectorize(math.erf, otypes=[float])


class Surrogate:
    """A smooth function of points and a straight line, with the settings that explain the values best."""

    def __init__(self) -> None:
        self._at: tuple[int, ...] = (1, 1, 1)  # places in the three lists above
        self._looked = 0  # how many values there were when the settings were looked for

    def fit(self, points: FloatArray, losses: FloatArray) -> None:
        """Learn from points (n, groups) and their losses (n,), of which one at least is finite.

        Points are those of the last time, if there was one, and new ones behind them.
        """
        values = _logarithms(losses)
        self._values = (values - values.mean()) / (float(values.std()) or 1.0)
        if len(losses) >= (1 + _NEW) * self._looked:
            self._looked = len(losses)
            self._middle, self._spread = points.mean(0), float(points.std(0).mean()) or 1.0
            self._points = (points - self._middle) / self._spread
            self._look()
        else:
            self._append((points[len(self._points) :] - self._middle) / self._spread)
        self._weights = self._inverse @ self._values
        self._variance = self._explained(self._inverse)

    def expected(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means and standard deviations at points (k, groups), on a scale of its own."""
        scaled = (points - self._middle) / self._spread
        between = _kernel(scaled, self._points, self._at)
        own = 1 + _SLOPES[self._at[1]] * np.square(scaled).mean(1)
        left = own - np.einsum("kn,nm,km->k", between, self._inverse, between, optimize=True)
        return between @ self._weights, np.sqrt(self._variance * left.clip(1e-9))

    def improvement(self, points: FloatArray) -> FloatArray:
        """By how much each of the points is expected to be better than the best so far."""
        mean, deviation = self.expected(points)
        ahead = (self._values.min() - mean) / deviation
        density = np.exp(-np.square(ahead) / 2) / math.sqrt(2 * math.pi)
        return deviation * (ahead * (1 + _erf(ahead / math.sqrt(2))) / 2 + density)

    def _look(self) -> None:
        """Move to the settings next to those so far, as long as they explain the values better."""
        best, self._inverse = self._solve(self._at)
        for _ in range(_SWEEPS):
            before = self._at
            for which, step in itertools.product(range(3), (-1, 1)):
                place = before[which] + step
                if 0 <= place < len((_LENGTHS, _SLOPES, _NOISES)[which]):
                    other = (*before[:which], place, *before[which + 1 :])
                    likelihood, inverse = self._solve(other)
                    if likelihood > best:
                        best, self._at, self._inverse = likelihood, other, inverse
            if self._at == before:
                return

    def _solve(self, at: tuple[int, ...]) -> tuple[float, FloatArray]:
        """The logarithm of the values' likelihood, and the inverse of what they have in common."""
        matrix = _common(self._points, at)
        inverse = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
        fit = len(matrix) * math.log(self._explained(inverse))
        return float(-0.5 * (fit + np.linalg.slogdet(matrix)[1])), inverse

    def _append(self, new: FloatArray) -> None:
        """Grow the inverse by new points (k, groups), block by block."""
        known = self._inverse @ _kernel(self._points, new, self._at)
        corner = np.linalg.inv(_common(new, self._at) - _kernel(new, self._points, self._at) @ known)
        side = -known @ corner
        self._inverse = np.block([[self._inverse - side @ known.T, side], [side.T, corner]])
        self._points = np.concatenate([self._points, new])

    def _explained(self, inverse: FloatArray) -> float:
        return max(float(self._values @ inverse @ self._values) / len(self._values), 1e-12)


def _common(points: FloatArray, at: tuple[int, ...]) -> FloatArray:
    """The covariance of the values at these points."""
    return _kernel(points, points, at) + _NOISES[at[2]] * np.eye(len(points))


def _kernel(one: FloatArray, other: FloatArray, at: tuple[int, ...]) -> FloatArray:
    """Matern's, smooth twice, and a line's."""
    length, slope = _LENGTHS[at[0]], _SLOPES[at[1]]
    groups = one.shape[1]
    inner = one @ other.T / groups
    squares = np.square(one).mean(1)[:, None] + np.square(other).mean(1) - 2 * inner
    far = np.sqrt(5 * squares.clip(0)) / length
    return np.asarray((1 + far + far * far / 3) * np.exp(-far) + slope * inner)


def _logarithms(losses: FloatArray) -> FloatArray:
    """Losses on a scale on which a factor counts the same everywhere; from far above the middle on all are alike."""
    finite = losses[np.isfinite(losses)]
    best, middle = float(finite.min()), float(np.median(finite))
    offset = 0.0 if best > 0 else middle - 2 * best + 1e-12
    low, half = math.log(best + offset), math.log(middle + offset)
    with np.errstate(divide="ignore"):
        return np.minimum(np.log(losses + offset), half + _TAIL * max(half - low, 1e-9))
