"""On a GPU: a replayed step is an eager step, and a run survives interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lcprune import models, tune
from lcprune.data import Dataset
from lcprune.tune.feed import make_feed
from lcprune.tune.step import Stepper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def stepper(blobs: Dataset, capture: bool, **changes: object) -> Stepper:
    torch.manual_seed(0)
    device = torch.device("cuda")
    recipe = tune.recipe("baseline", batch_size=32, lr=0.01, **changes)
    model = models.build("digits_resnet", num_classes=4).to(device=device, memory_format=torch.channels_last)
    teacher = models.build("digits_resnet", num_classes=4).to(device).eval() if recipe.distill else None
    groups = [(list(model.parameters())[:-2], [0.01]), (list(model.parameters())[-2:], [0.02])]
    return Stepper(model.train(), make_feed(blobs, 32, True, 0, device), [recipe], groups, teacher, capture)


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}, {"distill": 0.5, "lr_decay": "cosine"}])
def test_replayed_steps_are_eager_steps(blobs: Dataset, changes: dict[str, object]) -> None:
    eager, graph = stepper(blobs, False, **changes), stepper(blobs, True, **changes)
    assert graph.graph is not None
    for epoch in range(2):
        for one in (eager, graph):
            one.start(epoch, 0)
            for position in range(one.feed.steps):
                one.step(position)
        tolerance = 0.05 if changes.get("precision") == "bf16" else 1e-2
        torch.testing.assert_close(graph.losses, eager.losses, rtol=tolerance, atol=tolerance)
    for a, b in zip(eager.network.buffers(), graph.network.buffers(), strict=True):
        if a.dtype == torch.int64:
            assert torch.equal(a, b), "warm-up steps must leave no trace"


def test_the_step_uses_the_learning_rate_of_its_place(blobs: Dataset) -> None:
    one = stepper(blobs, True, epochs=2, milestones=(1,))
    for epoch, factor in ((0, 1.0), (1, 0.1)):
        one.start(epoch, 0)
        one.step(0)
        rates = [float(rate) for rate in one.rates]
        assert rates == pytest.approx([0.01 * factor, 0.02 * factor])


def test_a_run_on_the_gpu_learns_and_resumes(blobs: Dataset, tmp_path: Path) -> None:
    recipe = tune.recipe("baseline", epochs=8, batch_size=32, lr=0.02, precision="bf16")
    torch.manual_seed(0)
    model = models.build("digits_resnet", num_classes=4)
    part = tune.fit(model, blobs, recipe, run_dir=tmp_path, max_seconds=0.0, progress=False)
    assert not part.finished
    whole = tune.fit(model, blobs, recipe, run_dir=tmp_path, resume=True, progress=False)
    assert whole.finished and len(whole.history) == 8
    assert tune.evaluate(model, blobs, "test").accuracy > 0.9
