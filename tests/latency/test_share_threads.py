"""ONNX Runtime with one set of threads for all: in a process of its own, since there is no way back."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

SCRIPT = """
import torch, lcprune, onnxruntime
lcprune.latency.share_threads()
model, x = lcprune.models.build("digits_resnet").eval(), lcprune.models.example_input("digits_resnet")
run = lcprune.latency.make_backend("onnx", "cpu").network(model, (x,))
assert run() is not None
from lcprune.onnx_runtime import session_options
assert session_options().use_per_session_threads is False
"""


def test_networks_run_with_shared_threads() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
