"""CIFAR-10 in its three formats, and what is said when it is missing, cut short or of the wrong shape."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from lcprune import data
from lcprune.errors import DataError


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8),
        "y_train": np.arange(100, dtype=np.uint8) % 10,
        "x_test": generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8),
        "y_test": np.arange(20, dtype=np.uint8) % 10,
    }


def write(folder: Path, arrays: dict[str, np.ndarray], kind: str) -> Path:
    if kind == "npz":
        np.savez(folder / "cifar10.npz", **arrays)
        return folder / "cifar10.npz"
    inside = folder / "cifar-10-batches-py"
    inside.mkdir()
    batches = {f"data_batch_{i + 1}": slice(20 * i, 20 * i + 20) for i in range(5)} | {"test_batch": slice(0, 20)}
    for name, part in batches.items():
        source = "test" if name == "test_batch" else "train"
        rows = arrays[f"x_{source}"][part].transpose(0, 3, 1, 2).reshape(20, -1)
        stored = {b"data": rows, b"labels": arrays[f"y_{source}"][part].tolist(), b"batch_label": b"a batch"}
        (inside / name).write_bytes(pickle.dumps(stored, protocol=2))
    return folder


@pytest.mark.parametrize("kind", ["npz", "python"])
def test_formats_hold_the_same_images(tmp_path: Path, arrays: dict[str, np.ndarray], kind: str) -> None:
    dataset = data.load(f"cifar10:{write(tmp_path, arrays, kind)}", val=0)
    assert isinstance(dataset.train, data.ArraySplit) and isinstance(dataset.test, data.ArraySplit)
    assert np.array_equal(dataset.train.images, arrays["x_train"])
    assert np.array_equal(dataset.train.labels, arrays["y_train"])
    assert np.array_equal(dataset.test.images, arrays["x_test"])
    assert dataset.input_shape == (3, 32, 32) and dataset.num_classes == 10


def test_missing_says_what_was_looked_for_and_where(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no CIFAR-10 at .*nowhere.*\.npz.*data_batch_1"):
        data.load(f"cifar10:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("kind", ["npz", "python"])
def test_truncated(tmp_path: Path, arrays: dict[str, np.ndarray], kind: str) -> None:
    path = write(tmp_path, arrays, kind)
    file = path if path.is_file() else next(path.rglob("data_batch_3*"))
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DataError, match=f"{file.name}.*truncated"):
        data.load(f"cifar10:{path}")


def test_a_missing_batch_is_named(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    write(tmp_path, arrays, "python")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataError, match="lacks data_batch_4"):
        data.load(f"cifar10:{tmp_path}")


@pytest.mark.parametrize(
    ("key", "wrong", "message"),
    [
        ("x_train", np.zeros((100, 28, 28, 3), np.uint8), r"x_train .*\(100, 28, 28, 3\), "),
        ("x_test", np.zeros((20, 32, 32, 3), np.float32), "x_test is float32"),
        ("y_train", np.zeros(99, np.uint8), "100 images and y_train 99 labels"),
        ("y_test", np.full(20, 10, np.uint8), r"label 10 \(image 0 of test\) is none of the 10 classes, 0 to 9"),
    ],
)
def test_wrong_shapes(tmp_path: Path, arrays: dict[str, np.ndarray], key: str, wrong: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.load(f"cifar10:{write(tmp_path, arrays | {key: wrong}, 'npz')}")


def test_code_in_a_batch_is_not_run(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "ran"),))

    write(tmp_path, arrays, "python")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({b"data": Bomb()}, protocol=2))
    with pytest.raises(DataError, match="arrays only"):
        data.load(f"cifar10:{tmp_path}")
    assert not (tmp_path / "ran").exists()
