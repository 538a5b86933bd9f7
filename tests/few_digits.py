"""Fewer digits, for tests of long ways: `--data few_digits.py:build`, or `few_digits.build()`."""

from __future__ import annotations

from dataclasses import replace

from lcprune import data
from lcprune.data import Dataset


def build() -> Dataset:
    """522 images to train on and 58 held out, which makes four steps of 128; the test images are all there."""
    whole = data.load("digits", val=0)
    return data.hold_out(replace(whole, train=whole.train.subset(range(580))))
