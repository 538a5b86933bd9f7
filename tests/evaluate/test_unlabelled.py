"""Judging without labels: the whole network's own answers are the targets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lcprune.batches import collate
from lcprune.errors import ConfigError, DataError
from lcprune.evaluate import answered

SAMPLES = [(image, ()) for image in torch.randn(20, 3, 6, 6, generator=torch.Generator().manual_seed(0))]


class Two(nn.Module):
    """Gives two tensors on very different scales, and counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.passes += 1
        x = self.norm(self.conv(x))
        return {"map": x, "mean": 1000 * x.mean((2, 3))}


def test_the_whole_network_has_no_distance_and_every_output_counts_the_same() -> None:
    model = Two().eval()
    pairs, distance = answered(model, SAMPLES)
    (batch,) = collate(pairs, 20)
    with torch.no_grad():
        output = model(batch.inputs)
        assert float(distance(output, batch.target)) == 0
        for name in output:  # the mean over images as an answer is as far as the answers differ, which is 1
            silent = {**output, name: output[name].mean(0, keepdim=True).expand_as(output[name])}
            assert float(distance(silent, batch.target)) == pytest.approx(0.5, rel=1e-4)
        assert float(distance({"map": output["map"]}, batch.target)) == float("inf")


def test_scores_of_classes_are_compared_as_probabilities() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    pairs, divergence = answered(model, SAMPLES, classes=True)
    (batch,) = collate(pairs, 20)
    with torch.no_grad():
        output = model(batch.inputs)
        assert float(divergence(output + 7, batch.target)) == pytest.approx(0, abs=1e-6)  # the same probabilities
        before, after = output.softmax(1), (3 * output).softmax(1)
        expected = (before * (before / after).log()).sum(1).mean()
        assert float(divergence(3 * output, batch.target)) == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(ConfigError, match="take 'distance'"):
        answered(Two(), SAMPLES, classes=True)


def test_the_network_is_not_touched() -> None:
    model = Two().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    answered(model, SAMPLES)
    assert model.training and model.norm.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_compared_is_refused() -> None:
    class Classes(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).argmax(1)

    with pytest.raises(DataError, match="no numbers of a fixed size"):
        answered(Classes(3, 4, 3), SAMPLES)

    class Penalised(nn.Conv2d):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return (y := super().forward(x)), y.mean()

    with pytest.raises(DataError, match="for each image"):
        answered(Penalised(3, 4, 3), SAMPLES)
    with pytest.raises(DataError, match="not finite"):
        answered(Two(), [(torch.full_like(image, torch.nan), ()) for image, _ in SAMPLES])
