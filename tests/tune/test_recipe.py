"""The paper's recipes, number by number, and how they bend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from lcprune import tune
from lcprune.errors import TuneError
from lcprune.tune.step import training_loss


def rates(recipe: tune.Recipe) -> list[float]:
    return [round(recipe.lr * float(recipe.factors(epoch, 1)[0]), 9) for epoch in range(recipe.epochs)]


@pytest.mark.parametrize(
    ("name", "epochs", "lr", "falls"),
    [
        ("baseline", 200, 0.1, (60, 120, 160)),
        ("finetune", 60, 0.01, (18, 36, 48)),
        ("imagenet", 30, 1e-4, (20,)),
        ("transfer", 60, 1e-4, (48,)),
    ],
)
def test_presets_are_the_papers(name: str, epochs: int, lr: float, falls: tuple[int, ...]) -> None:
    recipe = tune.recipe(name)
    assert recipe.nesterov and recipe.momentum == 0.9
    expected = [round(lr * 0.1 ** sum(epoch >= fall for fall in falls), 9) for epoch in range(epochs)]
    assert rates(recipe) == expected
    if name == "transfer":
        assert recipe.head_lr == 1e-3


def test_milestones_move_with_the_epochs_unless_given() -> None:
    assert tune.recipe("finetune", epochs=30).milestones == (9, 18, 24)
    assert rates(tune.recipe("finetune", epochs=1)) == [0.01], "a short run begins at the full rate"
    assert tune.recipe("finetune", epochs=30, milestones=[5]).milestones == (5,)


def test_cosine_and_warmup() -> None:
    recipe = tune.recipe("baseline", epochs=10, lr_decay="cosine", warmup_epochs=2)
    factors = np.concatenate([recipe.factors(epoch, 5) for epoch in range(10)])
    assert np.all(np.diff(factors[:10]) > 0) and factors[9] == pytest.approx(1)
    assert np.all(np.diff(factors[10:]) < 0) and factors[-1] < 0.01


def test_json_round_trip() -> None:
    recipe = tune.recipe("transfer", epochs=7, distill=0.5)
    assert tune.Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1.0}, "lr=-1"),
        ({"lr_decay": "linear"}, "'linear'"),
        ({"precision": "fp16"}, "'fp16'"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"distill": 2.0}, "distill=2"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TuneError, match=message):
        tune.recipe("finetune", **changes)


def test_unknown_recipe_lists_the_known() -> None:
    with pytest.raises(TuneError, match=r"'fast'.*baseline, finetune, imagenet, transfer"):
        tune.recipe("fast")


def test_distillation_ends_at_the_teacher() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(8, 5), torch.arange(8) % 5
    recipe = tune.recipe("finetune", distill=1.0)
    assert training_loss(logits, labels, recipe, logits) == pytest.approx(0, abs=1e-6)
    assert training_loss(logits, labels, recipe, torch.randn(8, 5)) > 0.1
    # Hinton et al.: T^2 KL(teacher / T || pupil / T), so that gradients keep their size whatever T is.
    warm, teacher = tune.recipe("finetune", distill=1.0, temperature=3.0), torch.randn(8, 5)
    wanted, given = (teacher / 3).softmax(1), (logits / 3).softmax(1)
    distance = (wanted * (wanted / given).log()).sum(1).mean()
    assert training_loss(logits, labels, warm, teacher) == pytest.approx(float(9 * distance), rel=1e-5)
    half = tune.recipe("finetune", distill=0.5, label_smoothing=0.1)
    smooth = functional.cross_entropy(logits, labels, label_smoothing=0.1)
    assert training_loss(logits, labels, half, logits) == pytest.approx(float(0.5 * smooth))
