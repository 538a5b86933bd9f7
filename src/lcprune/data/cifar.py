"""CIFAR-10: one npz, or the python batches.

The python batches are pickles; they are read by an unpickler that knows arrays, numbers and strings only, so
that no code from the file can run.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lcprune.data.dataset import ARRAYS
from lcprune.errors import DataError
from lcprune.vision import import_torchvision

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Arrays = dict[str, np.ndarray]
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_PIXELS = 3 * 32 * 32


def read(path: Path, download: bool = False) -> Arrays:
    """Images (N, 32, 32, 3) and labels (N,) of CIFAR-10 under the names in `ARRAYS`.

    Args:
        path: an npz file with these, or a folder that holds one or the python batches (or holds a folder with them).
        download: fetch the data into `path` through torchvision where it is not there yet.
    """
    found = _find(path)
    if found is None and download:
        try:
            import_torchvision().datasets.CIFAR10(str(path), download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(f"CIFAR-10 could not be downloaded into {path}: {error}") from error
        found = _find(path)
    if found is None:
        raise DataError(
            f"no CIFAR-10 at {path}: looked for an .npz file with {', '.join(ARRAYS)} "
            "and for cifar-10-batches-py/data_batch_1 ... 5 and test_batch"
        )
    arrays = _read_npz(found) if found.is_file() else _read_batches(found)
    for name in ("x_train", "x_test"):
        if arrays[name].shape[1:] != (32, 32, 3):
            raise DataError(f"{found}: {name} has shape {arrays[name].shape}, expected (N, 32, 32, 3)")
    return arrays


def _find(path: Path) -> Path | None:
    if path.is_file():
        return path
    for folder in (path, path / "cifar-10-batches-py"):
        if (folder / "test_batch").is_file():
            return folder
    files = sorted(path.glob("*.npz"))
    return next((file for file in files if "cifar" in file.name), files[0] if files else None)


def _read_npz(file: Path) -> Arrays:
    try:
        with np.load(file, allow_pickle=False) as stored:
            missing = [key for key in ARRAYS if key not in stored]
            if missing:
                raise DataError(f"{file} lacks {', '.join(missing)}; it holds {', '.join(stored.files) or 'nothing'}")
            return {key: stored[key] for key in ARRAYS}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} is not a readable npz file (truncated?): {error}") from error


def _read_batches(folder: Path) -> Arrays:
    absent = [name for name in _TRAIN if not (folder / name).is_file()]
    if absent:
        raise DataError(f"{folder} lacks {', '.join(absent)}")
    parts = [_read_batch(folder / name) for name in _TRAIN]
    train = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return dict(zip(ARRAYS, (*train, *_read_batch(folder / "test_batch")), strict=True))


def _read_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        stored = _ArrayUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        data, labels = np.asarray(stored[b"data"]), np.asarray(stored[b"labels"])
    except DataError:
        raise
    except Exception as error:  # damaged pickles fail in many ways
        raise DataError(f"{file} is not a CIFAR-10 batch (truncated?): {type(error).__name__}: {error}") from error
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS or len(data) != len(labels):
        raise DataError(
            f"{file}: data is {data.dtype} {data.shape} with {len(labels)} labels, "
            f"expected uint8 (N, {_PIXELS}) with N labels"
        )
    return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how Python 2's strings travel
            return super().find_class(module, name)
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray"):
            if name == "_reconstruct":
                return np.empty((0,)).__reduce__()[0]
            if name in ("ndarray", "dtype"):
                return getattr(np, name)
        raise DataError(f"a CIFAR-10 batch must hold arrays only, but this file asks for {module}.{name}")
