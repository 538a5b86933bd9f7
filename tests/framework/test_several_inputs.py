"""Networks with several inputs and outputs, called by name: every step takes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lcprune
from lcprune import latency


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see, self.norm, self.kind = nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.Embedding(4, 12)
        self.mix, self.what, self.size = nn.Linear(12, 10), nn.Linear(10, 3), nn.Linear(10, 1)

    def forward(self, image: Tensor, *, kind: Tensor) -> dict[str, Tensor]:
        mixed = self.mix(self.norm(self.see(image)).relu().mean((2, 3)) + self.kind(kind)).relu()
        return {"what": self.what(mixed), "size": self.size(mixed)}


def loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["what"], target) + output["size"].square().mean()


@pytest.fixture(scope="module")
def network() -> tuple[nn.Module, dict[str, Tensor], lcprune.Evaluation]:
    torch.manual_seed(0)
    example = {"kind": torch.tensor([3, 0]), "image": torch.randn(2, 3, 6, 6)}
    batches = []
    for _ in range(2):
        inputs = {"image": torch.randn(16, 3, 6, 6), "kind": torch.randint(4, (16,))}
        batches.append((inputs, torch.randint(3, (16,))))
    return Two().eval(), example, lcprune.Evaluation(batches, loss_fn=loss)


def test_it_is_traced_pruned_repaired_and_checked(network) -> None:
    model, example, how = network
    graph = lcprune.trace(model, example)
    assert {group.name for group in graph.groups} == {"see", "mix"}
    assert graph.macs == 12 * 3 * 9 * 16 + 12 * 10 + 10 * 4
    search = lcprune.LcP(lcprune.Search(pool=4, iterations=6))
    result = lcprune.prune(model, example, macs="50%", method=search, data=how, progress=False)
    assert result.plan.macs <= graph.macs / 2 and result.repair is not None
    assert lcprune.verify(model, result.plan, example).ok
    assert lcprune.repair(model, result.plan, how.data, progress=False)(**example)["what"].shape == (2, 3)
    frontier = lcprune.pareto(model, example, macs=["70%", "40%"], methods=["naive"], data=how, progress=False)
    assert [point.plan.macs <= share * graph.macs for point, share in zip(frontier.points, (0.7, 0.4), strict=True)]


@pytest.mark.parametrize("backend", ["eager", "onnx"])
def test_its_latency_is_measured(network, backend: str) -> None:
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
    model, example, _ = network
    found = latency.measure({"two": model}, example, (1, 3), backend=backend, rounds=2, progress=False, device="cpu")
    assert all(record.ms is not None and record.ms > 0 for record in found)
