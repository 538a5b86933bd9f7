"""Training learns, repeats itself exactly, and is what a loop written by hand computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from lcprune import data, models, tune
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.tune.feed import make_feed

Make = Callable[..., nn.Module]
# On a CPU, wherever the tests run: what is compared with was computed there.
evaluate = partial(tune.evaluate, device="cpu")
fit = partial(tune.fit, progress=False, device="cpu")


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def quick(**changes: object) -> tune.Recipe:
    return tune.recipe("baseline", **{"epochs": 4, "batch_size": 32, "lr": 0.05, **changes})


def test_the_digits_are_learnt_to_97_percent() -> None:
    torch.manual_seed(0)
    model = models.build("digits_resnet")
    dataset = data.load("digits")
    result = fit(model, dataset, tune.recipe("baseline", epochs=10, batch_size=64, lr_decay="cosine"))
    assert result.finished and len(result.history) == 10
    assert evaluate(model, dataset, "test").accuracy > 0.97
    assert result.val_accuracy > 0.95
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"] / 5


def test_the_same_seed_gives_the_same_weights_and_another_does_not(small: Make, blobs: Dataset) -> None:
    runs = [fit(small(), blobs, quick(seed=seed)).model for seed in (0, 0, 1)]
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_steps_are_those_of_a_loop_written_by_hand(small: Make, blobs: Dataset) -> None:
    recipe = quick(epochs=2, milestones=(1,), label_smoothing=0.1)
    trained = fit(small(dropout=0.0), blobs, recipe).model
    model = small(dropout=0.0).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    feed = make_feed(blobs, 32, True, 0, torch.device("cpu"))
    for epoch in range(2):
        feed.start(epoch, 0)
        for _ in range(feed.steps):
            images, labels = feed.fetch()
            feed.cursor.add_(1)
            optimizer.param_groups[0]["lr"] = 0.05 * 0.1**epoch
            optimizer.zero_grad()
            functional.cross_entropy(model(images.contiguous()), labels, label_smoothing=0.1).backward()
            optimizer.step()
    for a, b in zip(trained.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_every_epoch_shows_other_crops_of_every_image(blobs: Dataset) -> None:
    feed = make_feed(blobs, 32, True, 0, torch.device("cpu"))
    feed.start(0, 0)
    first = feed.order.clone(), feed.drawn.clone()  # type: ignore[attr-defined]
    assert len(set(first[0].flatten().tolist())) == feed.steps * 32
    feed.start(1, 0)
    assert not torch.equal(feed.order, first[0])  # type: ignore[attr-defined]
    assert not torch.equal(feed.drawn, first[1])  # type: ignore[attr-defined]


def test_the_callers_random_state_and_modes_are_left_alone(small: Make, blobs: Dataset) -> None:
    model = small().eval()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(model, blobs, quick(epochs=1))
    assert torch.equal(torch.rand(3), expected)
    assert not model.training
    assert all(p.is_contiguous() for p in model.parameters())


def test_two_learning_rates_for_transfer(small: Make, blobs: Dataset) -> None:
    start, model = small(), small()
    fit(
        model,
        blobs,
        tune.recipe("transfer", epochs=1, lr=1e-12, head_lr=0.1, weight_decay=0.0),
    )
    assert torch.allclose(model.conv.weight, start.conv.weight, atol=1e-8)
    assert not torch.allclose(model.linear.weight, start.linear.weight, atol=1e-3)


def test_a_teacher_is_imitated_and_left_alone(small: Make, blobs: Dataset) -> None:
    teacher = fit(small(), blobs, quick(epochs=6)).model
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    torch.manual_seed(3)
    pupil = type(teacher)()
    teacher.train()  # as it comes from training; it must teach in evaluation mode all the same
    fit(pupil, blobs, quick(epochs=6, distill=1.0), teacher=teacher)
    assert teacher.training
    assert evaluate(pupil, blobs, "test").accuracy > 0.9
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    with pytest.raises(TuneError, match="needs a teacher"):
        fit(small(), blobs, quick(distill=0.5))


def test_recalibration_repairs_wrong_statistics(small: Make, blobs: Dataset) -> None:
    model = fit(small(), blobs, quick(epochs=6)).model
    good = evaluate(model, blobs, "val")
    model.bn.running_mean += 10
    broken = evaluate(model, blobs, "val")
    tune.recalibrate(model, blobs, images=120, device="cpu")
    repaired = evaluate(model, blobs, "val")
    assert broken.loss > repaired.loss + 0.5
    assert repaired.loss == pytest.approx(good.loss, abs=0.1)
    assert model.bn.momentum == 0.1
    with pytest.raises(TuneError, match="recalibrate=1: statistics need"):  # not after all epochs, but before
        quick(recalibrate=1)


@pytest.mark.parametrize(("images", "counted"), [(100, 80), (120, 120)])
def test_recalibration_leaves_out_a_small_last_batch(small: Make, blobs: Dataset, images: int, counted: int) -> None:
    model = small().train()
    tune.recalibrate(model, blobs, images, batch_size=40, seed=3, device="cpu")
    found, expected = model.bn.running_var.clone(), []
    assert model.training and model.bn.training
    for inputs, _ in blobs.batches("train", 40, limit=counted, seed=3):
        with torch.no_grad():
            expected.append(model.conv(inputs).var((0, 2, 3)))
    assert torch.allclose(found, torch.stack(expected).mean(0), rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"precision": "bf16"}, marks=pytest.mark.cpu_bf16),
        {"precision": "auto"},
        {"channels_last": False},
        {"recalibrate": 100},
    ],
)
def test_options_still_learn(small: Make, blobs: Dataset, changes: dict[str, object]) -> None:
    result = fit(small(), blobs, quick(epochs=6, **changes))
    assert result.val_accuracy > 0.9


def test_evaluate_counts_every_image_once(small: Make, blobs: Dataset) -> None:
    model = small().eval()
    images, labels = next(iter(blobs.batches("test", 1000)))
    with torch.no_grad():
        logits = model(images)
    loss, accuracy = evaluate(model, blobs, "test", batch_size=7)
    assert loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-5)
    assert accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


def test_files_of_a_run(small: Make, blobs: Dataset, tmp_path: Path) -> None:
    result = fit(small(), blobs, quick(eval_every=3), run_dir=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    assert [record["val_accuracy"] is not None for record in records] == [False, False, True, True]
    assert tune.Recipe.from_json(json.loads((tmp_path / "recipe.json").read_text())) == quick(eval_every=3)
    assert json.loads((tmp_path / "result.json").read_text())["val_accuracy"] == result.val_accuracy
    again = small()
    models.load_weights(again, tmp_path / "model.safetensors")
    assert same(again, result.model)


def test_image_files_are_trained_on_too(small: Make, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        for name, colour in (("dark", (30, 20, 10)), ("light", (220, 230, 240))):
            for number in range(8):
                path = tmp_path / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.new("RGB", (20, 16), colour).save(path)
    dataset = data.load(f"folder:{tmp_path}", val=4)

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48, 2))

    recipe = tune.recipe("transfer", epochs=3, batch_size=4, lr=0.05, head_lr=None)
    one, two = (fit(net(), dataset, recipe, workers=n) for n in (0, 2))
    assert one.val_accuracy == 1.0
    assert same(one.model, two.model)
