"""Random networks against independent references: `python -m tests.fuzz --minutes 10`."""

from . import blocks, code, layers

__all__ = ["blocks", "code", "layers"]
