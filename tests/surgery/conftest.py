"""The surgery's tests use the zoo of the graph's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ZOO_FOLDER = str(Path(__file__).parent.parent / "graph")
if ZOO_FOLDER not in sys.path:
    sys.path.insert(0, ZOO_FOLDER)

torch.set_num_threads(1)
