"""Drawing images: once, fairly, the same for the same seed, from whatever a user brings."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from lcprune.batches import collate, draw, fingerprint
from lcprune.errors import DataError

COUNT = 50
INPUTS = torch.arange(COUNT, dtype=torch.float32)[:, None]
TARGETS = torch.arange(COUNT)


def batches(size: int = 8):
    return list(zip(INPUTS.split(size), TARGETS.split(size), strict=True))


def loader(**settings) -> DataLoader:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=8, **settings)


def numbers(samples) -> list[int]:
    assert all(int(x[0]) == int(y) for x, y in samples)
    return [int(y) for _, y in samples]


SOURCES = {
    "list": batches,
    "generator": lambda: (batch for batch in batches()),
    "loader": loader,
    "shuffled loader": lambda: loader(shuffle=True),
    "own sampler": lambda: loader(sampler=SubsetRandomSampler(range(COUNT))),
}


@pytest.mark.parametrize("source", SOURCES)
def test_draws_without_replacement_and_keeps_all_if_there_are_fewer(source, caplog) -> None:
    some = numbers(draw(SOURCES[source](), 20, seed=0))
    assert len(some) == len(set(some)) == 20
    with caplog.at_level(logging.INFO, logger="lcprune"):
        everything = numbers(draw(SOURCES[source](), 3000, seed=0))
    assert sorted(everything) == list(range(COUNT))
    assert "50 images" in caplog.text and "3000 asked" in caplog.text


@pytest.mark.parametrize("source", ["list", "loader", "shuffled loader"])
def test_the_seed_decides(source) -> None:
    one = draw(SOURCES[source](), 20, seed=0)
    assert numbers(one) == numbers(draw(SOURCES[source](), 20, seed=0))
    assert fingerprint(one) == fingerprint(draw(SOURCES[source](), 20, seed=0))
    assert numbers(one) != numbers(draw(SOURCES[source](), 20, seed=1))
    assert fingerprint(one) != fingerprint(draw(SOURCES[source](), 20, seed=1))


@pytest.mark.parametrize("source", ["list", "loader"])
def test_every_image_has_the_same_chance(source) -> None:
    seen = np.zeros(COUNT)
    for seed in range(400):
        seen[numbers(draw(SOURCES[source](), 10, seed=seed))] += 1
    assert np.all(np.abs(seen - 80) < 5 * np.sqrt(80 * 0.8))


def test_the_first_of_a_few_is_drawn_as_often_as_the_last() -> None:
    seen = np.zeros(3)
    for seed in range(600):
        seen[numbers(draw(iter([(INPUTS[:3], TARGETS[:3])]), 1, seed=seed))] += 1
    assert np.all(np.abs(seen - 200) < 5 * np.sqrt(200 * 2 / 3))


def test_a_held_out_part_is_never_drawn() -> None:
    data = loader(sampler=SubsetRandomSampler(range(10, COUNT)))
    assert min(numbers(draw(data, 3000, seed=0))) == 10


def test_only_the_drawn_images_of_a_large_loader_are_read() -> None:
    class Counting(TensorDataset):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

    data = Counting(INPUTS, TARGETS)
    draw(DataLoader(data, batch_size=8), 5, seed=0)
    assert data.read == 5


def test_drawn_images_do_not_keep_their_batches_alive_nor_share_memory() -> None:
    source = batches(25)
    for inputs, _ in draw(source, 3, seed=0):
        assert inputs.untyped_storage().nbytes() == inputs.numel() * 4


def test_nested_inputs_and_targets_and_arrays() -> None:
    data = [((INPUTS, INPUTS.numpy() * 2), {"label": TARGETS})]
    samples = draw(data, 5, seed=0)
    (first, second), target = collate(samples, 5)[0]
    assert torch.equal(second, first * 2) and torch.equal(target["label"].float(), first[:, 0])


def test_batches_have_the_asked_size_but_for_the_last() -> None:
    made = collate(draw(batches(), 20, seed=0), 8)
    assert [batch.size for batch in made] == [8, 8, 4] and made[0].inputs.shape == (8, 1)


def test_samples_of_a_data_set_are_stacked_as_they_are() -> None:
    (batch,) = collate([(INPUTS[0], 3), (INPUTS[1].numpy(), 4)], 2)
    assert torch.equal(batch.inputs, INPUTS[:2]) and torch.equal(batch.target, torch.tensor([3, 4]))


def test_sizes_that_differ_are_named() -> None:
    with pytest.raises(DataError, match=r"of \[3, 8, 8\] and of \[3, 6, 8\] make no batch: .*resizing"):
        collate([(torch.zeros(3, 8, 8), 0), (torch.zeros(3, 6, 8), 0)], 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "iterable of .* batches, not int"),
        ([], "holds no images"),
        ([(INPUTS, TARGETS, TARGETS)], r"\(input, target\) batches"),
        ([(INPUTS, TARGETS[:3])], "same first dimension"),
        ([(INPUTS, "cat")], "not str"),
        ([(INPUTS, torch.tensor(1))], "same first dimension"),
        ([(INPUTS[0], 3)], r"not int; .*DataLoader\(dataset"),
    ],
)
def test_what_is_not_data_is_refused(data, message) -> None:
    with pytest.raises(DataError, match=message):
        draw(data, 5, seed=0)


def test_inputs_alone_are_enough() -> None:
    labelled, alone = draw([(INPUTS, TARGETS)], 3, seed=0), draw([INPUTS], 3, seed=0)
    assert all(torch.equal(a, b) and target == () for (a, _), (b, target) in zip(labelled, alone, strict=True))
