"""Data of any task: every form of a part gives the same batches, and what is none says so."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lcprune
from lcprune import data, tune
from lcprune.errors import ConfigError, DataError

X, Y = torch.arange(40.0).view(20, 2), torch.arange(20.0)[:, None]

FORMS = {
    "arrays": (X, Y),
    "data set": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=8),
    "list": [(X[:16], Y[:16]), (X[16:], Y[16:])],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_all_samples_as_often_as_asked(form: str) -> None:
    own = data.own("mine", {"train": FORMS[form], "test": FORMS[form]})
    assert len(own.train) == 20 and own.labelled and own.input_shape == [2] and not own.val
    batches = own.batches("train", 8)
    for _ in range(2):
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        assert torch.equal(inputs, X) and torch.equal(targets, Y)
    few = [batch.target for batch in own.batches("train", 8, limit=9, seed=1)]
    drawn = torch.cat(few).flatten().tolist()
    assert len(set(drawn)) == 9 and drawn != sorted(drawn) and max(drawn) > 8
    assert sum(batch.size for batch in own.batches("train", 8, limit=9)) == 9


@pytest.mark.parametrize(("form", "held"), [("arrays", 2), ("data set", 2), ("loader", 0)])
def test_a_tenth_is_held_out_where_samples_can_be_asked_for(form: str, held: int) -> None:
    first, other = (data.hold_out(data.own("mine", {"train": FORMS[form]}), seed) for seed in (0, 1))
    assert len(first.val) == held and len(first.train) == 20 - held
    if held:
        parts = [
            torch.cat([batch.target for batch in one.batches(name)]) for one in (first, other) for name in ("val",)
        ]
        assert not torch.equal(*parts)
        train = torch.cat([batch.target for batch in first.batches("train")])
        assert not set(train.flatten().tolist()) & set(parts[0].flatten().tolist())
    else:
        with pytest.raises(DataError, match="cannot be parted"):
            data.hold_out(first, val=0.5)


@pytest.mark.parametrize("form", FORMS)
def test_training_is_the_same_however_often_it_stops(form: str, tmp_path) -> None:
    def fit(folder, **more) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        own = data.own("mine", {"train": FORMS[form], "val": (X, Y)}, mse_loss)
        recipe = tune.recipe("finetune", epochs=2, lr=1e-3, batch_size=4)
        for _ in range(12):
            result = tune.fit(model, own, recipe, run_dir=folder, resume=True, progress=False, device="cpu", **more)
            if result.finished:
                assert "val_accuracy" not in result.history[0] and math.isfinite(result.val_score)
                return model[0].weight.detach()
        raise AssertionError("not finished")

    assert torch.equal(fit(tmp_path / "a"), fit(tmp_path / "b", max_seconds=0.0))


def test_scores_are_means_over_samples_or_add_up() -> None:
    class Largest:
        better = "lower"

        def __init__(self) -> None:
            self.found = 0.0

        def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
            self.found = max(self.found, float((output - target).abs().max()))

        def compute(self) -> float:
            return self.found

    model = nn.Linear(2, 1)
    model.requires_grad_(False)
    apart = (model(X) - Y).abs()
    parts = {"test": [(X[:16], Y[:16]), (X[16:], Y[16:])], "loss": mse_loss}
    found = {}
    for score in (None, l1_loss, Largest, lcprune.Score(l1_loss, "MAE", better="lower")):
        own = data.own("mine", {**parts, "score": score})
        result = tune.evaluate(model, own, "test", device="cpu")
        assert result.loss == pytest.approx(float(mse_loss(model(X), Y)))
        found[own.compared_by.name] = (result.score, own.compared_by.better)
    mean = pytest.approx(float(apart.mean()))
    assert found == {
        "loss": (pytest.approx(float(mse_loss(model(X), Y))), "lower"),
        "l1_loss": (mean, "higher"),
        "Largest": (pytest.approx(float(apart.max())), "lower"),
        "MAE": (mean, "lower"),
    }


class Single(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"trian": (X, Y)}, "has trian: expected train, val"),
        ({"train": (X, Y[:3])}, "same first dimension"),
        ({"train": iter([(X, Y)])}, "can be read only once"),
        ({"train": Single()}, "gives single samples"),
        ({"train": 3}, "is no data"),
        (3, "gave a int"),
    ],
)
def test_what_is_no_data_says_so(parts, says: str) -> None:
    with pytest.raises(DataError, match=says):
        data.own("mine", parts)


@pytest.mark.parametrize(("given", "says"), [({"better": "more"}, "better='more'"), ({"name": "macs"}, "'macs'")])
def test_a_score_that_cannot_be_shown_is_refused(given, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lcprune.Score(l1_loss, **given)


def test_a_first_look_opens_no_more_parts_than_it_needs() -> None:
    opened = []

    class Part(IterableDataset):  # type: ignore[type-arg]
        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self):
            opened.append(self.name)
            return iter([(torch.zeros(2), torch.zeros(1))] * 4)

    parts = {name: DataLoader(Part(name), batch_size=2) for name in ("train", "val", "test")}
    assert data.own("parts", parts).first.size == 2
    assert opened == ["train"]
