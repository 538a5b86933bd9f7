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

from lcprune.errors import DataError

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Arrays = dict[str, np.ndarray]
_KEYS = ("x_train", "y_train", "x_test", "y_test")
_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
_PIXELS = 3 * 32 * 32


def read(path: Path, download: bool = False) -> Arrays:
    """Images and labels of CIFAR-10.

    Args:
        path: an npz file with x_train, y_train, x_test, y_test, or a folder that holds one or the python batches
            (or holds a folder with them).
        download: fetch the data into `path` through torchvision where it is not there yet.

    Returns:
        uint8 images (N, 32, 32, 3) and integer labels (N,) under the four names.
    """
    found = _find(path)
    if found is None and download:
        _download(path)
        found = _find(path)
    if found is None:
        raise DataError(
            f"no CIFAR-10 at {path}: looked for an .npz file with {', '.join(_KEYS)} "
            "and for cifar-10-batches-py/data_batch_1 ... 5 and test_batch"
        )
    arrays = read_npz(found) if found.is_file() else _read_batches(found)
    for part in ("train", "test"):
        shape = arrays[f"x_{part}"].shape
        if shape[1:] != (32, 32, 3):
            raise DataError(f"{found}: x_{part} has shape {shape}, expected (N, 32, 32, 3)")
        labels = arrays[f"y_{part}"]
        if labels.min() < 0 or labels.max() > 9:
            raise DataError(f"{found}: y_{part} holds labels from {labels.min()} to {labels.max()}, expected 0 to 9")
    return arrays


def read_npz(file: Path) -> Arrays:
    """x_train, y_train, x_test and y_test of an npz file, checked for kind and length."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            missing = [key for key in _KEYS if key not in stored]
            if missing:
                raise DataError(f"{file} lacks {', '.join(missing)}; it holds {', '.join(stored.files) or 'nothing'}")
            return check({key: stored[key] for key in _KEYS}, str(file))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} is not a readable npz file (truncated?): {error}") from error


def check(arrays: Arrays, source: str) -> Arrays:
    """Raise unless the arrays are uint8 images (N, H, W, C) with one integer label each."""
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], np.asarray(arrays[f"y_{part}"]).reshape(-1)
        if images.dtype != np.uint8 or images.ndim != 4:
            raise DataError(
                f"{source}: x_{part} is {images.dtype} {images.shape}, expected uint8 (N, height, width, channels)"
            )
        if not np.issubdtype(labels.dtype, np.integer):
            raise DataError(f"{source}: y_{part} is {labels.dtype}, expected integers")
        if len(images) != len(labels) or not len(images):
            raise DataError(f"{source}: x_{part} has {len(images)} images and y_{part} {len(labels)} labels")
        arrays[f"y_{part}"] = labels.astype(np.int64)
    return arrays


def _find(path: Path) -> Path | None:
    if path.is_file():
        return path
    for folder in (path, path / "cifar-10-batches-py"):
        if (folder / "test_batch").is_file():
            return folder
    files = sorted(path.glob("*.npz"))
    named = [file for file in files if "cifar" in file.name]
    candidates = named or files
    return candidates[0] if candidates else None


def _read_batches(folder: Path) -> Arrays:
    absent = [name for name in _TRAIN if not (folder / name).is_file()]
    if absent:
        raise DataError(f"{folder} lacks {', '.join(absent)}")
    parts = [_read_batch(folder / name) for name in _TRAIN]
    x_test, y_test = _read_batch(folder / "test_batch")
    x_train, y_train = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return check({"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}, str(folder))


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
    return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels.astype(np.int64)


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


def _download(path: Path) -> None:
    from lcprune.vision import import_torchvision

    datasets = import_torchvision().datasets
    try:
        datasets.CIFAR10(str(path), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(f"CIFAR-10 could not be downloaded into {path}: {error}") from error
