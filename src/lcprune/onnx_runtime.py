"""ONNX exporters kept quiet, and the threads of ONNX Runtime: what exporting and measuring have in common."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from lcprune.errors import MissingDependencyError

_POOL = False  # whether sessions share threads


def import_onnx(*names: str) -> list[Any]:
    """Modules that the `onnx` extra brings; where one is not installed, an error says how to get it."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise MissingDependencyError(
            f"{error.name} is not installed; it comes with: pip install lcprune[onnx]"
        ) from None


def open_session(network: str | bytes) -> Any:
    """A network, in a file or in memory, ready to be run by ONNX Runtime on the CPU."""
    (onnxruntime,) = import_onnx("onnxruntime")
    return onnxruntime.InferenceSession(network, session_options(), providers=["CPUExecutionProvider"])


def session_options() -> Any:
    """What sessions of ONNX Runtime are made with."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if _POOL:
        options.use_per_session_threads = False
    else:
        # A session's own threads go on looking for work after a run, in the way of the next session.
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def share_threads() -> None:
    """Let all sessions of ONNX Runtime in this process have the same threads, for steadier latencies of small networks.

    Threads of a session's own must be woken at every run. For processes that do nothing else: it must come before the
    first session, and from then on ONNX Runtime refuses sessions without `use_per_session_threads = False`.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed, or too old to share threads.
    """
    global _POOL
    try:
        from onnxruntime import set_global_thread_pool_sizes
    except ImportError as error:
        raise MissingDependencyError(
            f"no ONNX Runtime that can share threads ({error}); a new one comes with: pip install -U lcprune[onnx]"
        ) from None
    set_global_thread_pool_sizes(torch.get_num_threads(), 1)
    _POOL = True


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Exporters tell of their own steps, on stdout and as warnings; none of it helps whoever exports."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
