"""The evaluator that a search gets: images per forward pass, and what reaches the loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lcprune
from lcprune.batches import draw
from lcprune.evaluate import Evaluation, make_evaluator
from lcprune.evaluate.make import default_batch_size


def test_on_a_gpu_all_images_are_one_batch_where_memory_allows(plain, monkeypatch) -> None:
    cost, device = plain.graph.cost, torch.device("cuda")
    assert 0 < cost.largest < cost.activations(cost.sizes)
    live = min(cost.activations(cost.sizes), 6 * cost.largest)
    for free, images in ((80 << 30, 3000), (2 * 4 * live * 100, 100), (0, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 80 << 30))
        assert default_batch_size(plain.graph, 3000, device) == images


@pytest.mark.cpu_bf16
def test_outputs_in_halves_reach_the_loss_in_float32_wherever_they_are(plain, digits) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = plain.model

        def forward(self, x):
            return {"classes": self.network(x)}

    seen = []

    def loss_fn(output, target):
        seen.append(output["classes"].dtype)
        return cross_entropy(output["classes"], target)

    graph = lcprune.trace(Named(), digits.example)
    make_evaluator(graph, draw(digits.train, 32, seed=0), Evaluation(loss_fn=loss_fn, precision="bf16")).full_loss()
    assert set(seen) == {torch.float32}
