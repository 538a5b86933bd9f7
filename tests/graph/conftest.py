"""Puts the zoo and its oracles on the path, and keeps torch on one thread per test process."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

torch.set_num_threads(1)
