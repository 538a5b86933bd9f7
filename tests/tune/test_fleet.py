"""A fleet makes of each cut what `fit` makes of it, keeps removed channels at zero, and `fit` can take it up."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import few_digits
import lcprune
from lcprune import data, models, tune
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.plan import Plan
from lcprune.tune.fleet.layers import fleet_network
from lcprune.tune.fleet.stack import Layout

SEEDS = [3, 5, 3]
BATCH = 160
# Few and small steps: rounding grows with each, to 6e-6 here. With another seed, networks differ by 4e-3 and more.
RECIPE = tune.recipe("finetune", epochs=2, batch_size=BATCH, lr=0.002)
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Two steps an epoch, and an image left over."""
    whole = data.load("digits")
    return replace(whole, train=whole.train.subset(range(2 * BATCH + 1)))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    model = few_digits.net()
    recipe = tune.recipe("baseline", epochs=3, batch_size=128)
    return tune.fit(model, data.load("digits"), recipe, progress=False, device="cpu").model.eval()


@pytest.fixture(scope="module")
def plans(network: nn.Module) -> list[Plan]:
    example = models.example_input(few_digits.NET)
    graph = lcprune.trace(network, example)

    def cut(method: str, macs: float) -> Plan:
        return lcprune.prune(graph, macs=macs, method=method, progress=False).plan

    return [cut("naive", 0.5), cut("uniform", 0.5), cut("naive", 0.3)]


def close(ours: nn.Module, theirs: nn.Module) -> None:
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-3, atol=TOLERANCE, msg=name)


def alone(network: nn.Module, plan: Plan, digits: Dataset, seed: int, **more: object) -> tune.FitResult:
    more.setdefault("recipe", RECIPE)
    recipe = replace(more.pop("recipe"), seed=seed)  # type: ignore[type-var]
    return tune.fit(plan.apply(network), digits, recipe, progress=False, device="cpu", **more)  # type: ignore[arg-type]


def together(network: nn.Module, plans: list[Plan], digits: Dataset, **more: object) -> list[tune.FitResult]:
    settings = {"recipe": RECIPE, "seeds": SEEDS, "progress": False, "device": "cpu", **more}
    return tune.fit_fleet(network, plans, digits, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def apart(network: nn.Module, plans: list[Plan], digits: Dataset) -> list[nn.Module]:
    """What `fit` makes of each cut."""
    return [alone(network, plan, digits, seed).model for plan, seed in zip(plans, SEEDS, strict=True)]


def test_gradients_are_those_of_the_cuts(network: nn.Module, plans: list[Plan]) -> None:
    whole = copy.deepcopy(network).double()
    fleet, cuts = fleet_network(whole, 3).train(), [plan.apply(whole).train() for plan in plans]
    layouts = [Layout(whole, plan) for plan in plans]
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 5, 1, 8, 8, dtype=torch.float64, generator=generator)
    labels = torch.randint(10, (3, 5), generator=generator)
    with torch.no_grad():
        for number, cut in enumerate(cuts):
            for name, tensor in cut.state_dict().items():
                fleet.state_dict()[name][number].copy_(layouts[number].scatter(name, tensor))
    losses = functional.cross_entropy(fleet(images.flatten(0, 1)), labels.flatten(), reduction="none").view(3, 5)
    losses.mean(1).sum().backward()
    stacked = dict(fleet.named_parameters())
    for number, cut in enumerate(cuts):
        functional.cross_entropy(cut(images[number]), labels[number]).backward()
        for name, parameter in cut.named_parameters():
            gradient = stacked[name].grad[number]
            torch.testing.assert_close(layouts[number].gather(name, gradient), parameter.grad, msg=name)
            assert not layouts[number].rest(name, gradient).count_nonzero(), name
        for name, buffer in cut.named_buffers():
            ours = layouts[number].gather(name, fleet.state_dict()[name][number])
            torch.testing.assert_close(ours, buffer, msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"label_smoothing": 0.1, "head_lr": 0.004, "lr_decay": "cosine"},
        {"momentum": 0.0, "augment": False, "eval_every": 2},
    ],
)
def test_every_member_is_what_fit_makes_of_it(
    network: nn.Module, plans: list[Plan], digits: Dataset, changes: dict[str, object], tmp_path: Path
) -> None:
    recipe = replace(RECIPE, **changes)
    folders = [tmp_path / "fleet" / str(number) for number in range(3)]
    results = together(network, plans, digits, recipe=recipe, run_dirs=folders)
    for number, (result, plan, seed) in enumerate(zip(results, plans, SEEDS, strict=True)):
        apart = tmp_path / "fit" / str(number)
        single = alone(network, plan, digits, seed, recipe=recipe, run_dir=apart)
        assert result.finished
        close(result.model, single.model)
        for ours, theirs in zip(result.history, single.history, strict=True):
            assert list(ours) == list(theirs)
            for key in ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy"):
                assert ours[key] == pytest.approx(theirs[key], abs=2e-3), key
        assert {p.name for p in folders[number].iterdir()} == {p.name for p in apart.iterdir()}
        assert json.loads((folders[number] / "recipe.json").read_text()) == json.loads(
            (apart / "recipe.json").read_text()
        )
        mine, other = (load_file(folder / "checkpoint.safetensors") for folder in (folders[number], apart))
        assert set(mine) == set(other)
        for name, tensor in other.items():  # momentum and losses too; with another seed, half of it would differ
            assert mine[name].shape == tensor.shape and mine[name].dtype == tensor.dtype, name
            apart_by = float((mine[name] - tensor).double().norm())
            assert apart_by <= 0.1 * float(tensor.double().norm()), name
    assert not torch.equal(results[0].model.conv1.weight, plans[0].apply(network).conv1.weight)


def test_what_was_removed_stays_exactly_zero(
    network: nn.Module, plans: list[Plan], digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[nn.Module] = []

    def remember(original: nn.Module, members: int) -> nn.Module:
        made.append(fleet_network(original, members))
        return made[-1]

    monkeypatch.setattr("lcprune.tune.fleet.run.fleet_network", remember)
    together(network, plans, digits)
    removed = 0
    for number, plan in enumerate(plans):
        layout = Layout(network, plan)
        for name, parameter in made[0].named_parameters():
            left = layout.rest(name, parameter[number])
            removed += left.numel()
            assert not left.count_nonzero(), name
    assert removed == sum(plan.original_params - plan.params for plan in plans) > 0


def test_a_teacher_teaches_all_members(network: nn.Module, plans: list[Plan], digits: Dataset) -> None:
    recipe = replace(RECIPE, distill=0.7)
    teacher = few_digits.net()
    teacher.load_state_dict(network.state_dict())
    seen: list[int] = []
    teacher.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    results = together(network, plans, digits, recipe=recipe, teacher=teacher.train())
    assert set(seen) == {3 * BATCH} and teacher.training
    for result, plan, seed in zip(results, plans, SEEDS, strict=True):
        close(result.model, alone(network, plan, digits, seed, recipe=recipe, teacher=network).model)
    with pytest.raises(TuneError, match="needs a teacher"):
        together(network, plans, digits, recipe=recipe)


VARIANTS = [
    replace(RECIPE, seed=3),
    replace(RECIPE, seed=5, lr=0.005, weight_decay=5e-3, lr_decay="cosine"),
    replace(RECIPE, seed=3, label_smoothing=0.3, warmup_epochs=1.0),
]


def starts(digits: Dataset) -> list[nn.Module]:
    """Three random networks of one shape."""
    made = []
    for seed in range(3):
        torch.manual_seed(seed)
        made.append(few_digits.net())
    return made


def test_random_starts_with_recipes_of_their_own_train_as_each_alone(digits: Dataset, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    ours = starts(digits)
    settings = {"models": ours, "seeds": None, "recipe": VARIANTS, "run_dirs": folders}
    part = together(ours[0], [None] * 3, digits, max_seconds=0.0, **settings)
    assert not any(result.finished for result in part)
    results = together(ours[0], [None] * 3, digits, resume=True, **settings)
    for result, begun, recipe, folder in zip(results, starts(digits), VARIANTS, folders, strict=True):
        single = tune.fit(begun, digits, recipe, progress=False, device="cpu")
        assert result.finished and json.loads((folder / "recipe.json").read_text()) == recipe.to_json()
        assert [r["train_loss"] for r in result.history] == pytest.approx(
            [r["train_loss"] for r in single.history], rel=1e-3
        )
        close(result.model, single.model)


def test_each_difference_between_recipes_matters(digits: Dataset) -> None:
    ours = [copy.deepcopy(starts(digits)[0]) for _ in range(4)]
    begin = replace(RECIPE, epochs=1)
    changes = ({}, {"lr": 0.011}, {"weight_decay": 0.05}, {"label_smoothing": 0.3})
    together(
        ours[0], [None] * 4, digits, models=ours, seeds=None, recipe=[replace(begin, **change) for change in changes]
    )
    same = ours[0].state_dict()
    for model in ours[1:]:
        assert max(float((model.state_dict()[name] - same[name]).abs().max()) for name in same) > 1e-4


def test_recipes_with_one_head_rate_each(digits: Dataset) -> None:
    recipes = [replace(RECIPE, epochs=1, head_lr=rate, seed=4) for rate in (0.02, 0.05, 0.1)]
    results = together(starts(digits)[0], [None] * 3, digits, models=starts(digits), seeds=None, recipe=recipes)
    for result, begun, recipe in zip(results, starts(digits), recipes, strict=True):
        close(result.model, tune.fit(begun, digits, recipe, progress=False, device="cpu").model)
    with pytest.raises(TuneError, match="a head_lr to all or none"):
        together(
            starts(digits)[0], [None] * 2, digits, seeds=None, recipe=[recipes[0], replace(recipes[0], head_lr=None)]
        )


def test_recipes_that_cannot_share_a_fleet_are_refused(network: nn.Module, digits: Dataset) -> None:
    with pytest.raises(TuneError, match=r"differ in batch_size \(160, 320\)"):
        together(network, [None] * 2, digits, seeds=None, recipe=[RECIPE, replace(RECIPE, batch_size=320)])
    with pytest.raises(TuneError, match="2 recipes for 3 plans"):
        together(network, [None] * 3, digits, seeds=None, recipe=[RECIPE] * 2)


def test_a_stopped_fleet_goes_on_as_fleet_or_alone(
    network: nn.Module, plans: list[Plan], digits: Dataset, apart: list[nn.Module], tmp_path: Path
) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    part = together(network, plans, digits, run_dirs=folders, max_seconds=0.0)
    assert not any(result.finished for result in part)
    with pytest.raises(TuneError, match="holds a run already"):
        together(network, plans, digits, run_dirs=folders)
    # One goes on by itself, and is then elsewhere.
    taken = alone(network, plans[2], digits, SEEDS[2], run_dir=folders[2], resume=True, max_seconds=0.0)
    assert not taken.finished
    with pytest.raises(TuneError, match="not at the same place"):
        together(network, plans, digits, run_dirs=folders, resume=True)
    two = together(network, plans[:2], digits, seeds=SEEDS[:2], run_dirs=folders[:2], resume=True)
    last = alone(network, plans[2], digits, SEEDS[2], run_dir=folders[2], resume=True)
    for result, expected in zip([*two, last], apart, strict=True):
        assert result.finished and len(result.history) == 2
        close(result.model, expected)


def test_fit_s_checkpoints_are_taken_up_by_a_fleet(
    network: nn.Module, plans: list[Plan], digits: Dataset, apart: list[nn.Module], tmp_path: Path
) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for plan, seed, folder in zip(plans, SEEDS, folders, strict=True):
        assert not alone(network, plan, digits, seed, run_dir=folder, max_seconds=0.0).finished
    results = together(network, plans, digits, run_dirs=folders, resume=True)
    for result, expected in zip(results, apart, strict=True):
        close(result.model, expected)


def test_looks_see_the_networks_after_so_many_steps(network: nn.Module, plans: list[Plan], digits: Dataset) -> None:
    seen: dict[int, list[dict[str, torch.Tensor]]] = {}

    def look(step: int) -> Callable[[list[nn.Module]], None]:
        def keep(networks: list[nn.Module]) -> None:
            assert not any(model.training for model in networks)
            seen[step] = [{k: v.clone() for k, v in model.state_dict().items()} for model in networks]

        return keep

    steps = len(digits.train) // BATCH
    together(network, plans, digits, looks={step: look(step) for step in (0, 2, steps + 1)})
    assert list(seen) == [0, 2, steps + 1]
    for number, plan in enumerate(plans):
        assert all(torch.equal(v, seen[0][number][k]) for k, v in plan.apply(network).state_dict().items())
        for step in seen:
            assert seen[step][number]["bn1.num_batches_tracked"] - seen[0][number]["bn1.num_batches_tracked"] == step


def test_a_lost_member_is_named_and_the_others_are_kept(
    network: nn.Module, plans: list[Plan], digits: Dataset, apart: list[nn.Module], tmp_path: Path
) -> None:
    cuts = [plan.apply(network) for plan in plans]
    with torch.no_grad():
        cuts[1].linear.bias.fill_(torch.inf)
    folders = [tmp_path / str(number) for number in range(3)]
    with pytest.raises(tune.LostMembers, match=f"member 1 .*{folders[1]}") as caught:
        together(network, plans, digits, models=cuts, run_dirs=folders)
    assert caught.value.members == (1,)
    assert [(folder / "checkpoint.safetensors").exists() for folder in folders] == [True, False, True]
    for number in (0, 2):
        result = alone(network, plans[number], digits, SEEDS[number], run_dir=folders[number], resume=True)
        close(result.model, apart[number])


class Selecting(Plan):
    """A plan whose surgery can be spoilt."""

    def apply(self, model: nn.Module) -> nn.Module:
        smaller = super().apply(model)
        self.meta["spoil"](smaller)
        return smaller


def _scale(model: nn.Module) -> None:
    model.bn1.weight.data *= 2


def _repeat(model: nn.Module) -> None:
    model.bn1.weight.data[1] = model.bn1.weight.data[0]


def _add(model: nn.Module) -> None:
    model.register_parameter("extra", nn.Parameter(torch.zeros(1)))


@pytest.mark.parametrize(("spoil", "words"), [(_scale, "bn1.weight"), (_repeat, "bn1.weight"), (_add, "extra")])
def test_a_cut_that_does_more_than_select_is_refused(
    network: nn.Module, plans: list[Plan], spoil: Callable[[nn.Module], None], words: str
) -> None:
    fields = {name: getattr(plans[0], name) for name in plans[0].__dataclass_fields__}
    with pytest.raises(TuneError, match=rf"{words}.*`fit`"):
        Layout(network, Selecting(**{**fields, "meta": {"spoil": spoil}}))


class Gated(nn.Module):
    """After a sigmoid, a removed channel is one half: its reader's column would wake up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
        self.linear = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.conv1(x))
        return self.linear(torch.relu(self.conv2(x)).mean((2, 3)))


def test_a_network_in_which_zero_is_not_absent_is_refused(digits: Dataset) -> None:
    torch.manual_seed(0)
    model = Gated()
    plan = lcprune.prune(model, torch.zeros(1, 1, 8, 8), macs=0.5, method="naive", progress=False).plan
    with pytest.raises(TuneError, match=r"conv2.weight of member 0 has gradients"):
        tune.fit_fleet(model, [plan, plan], digits, RECIPE, progress=False, device="cpu")


def test_what_a_fleet_cannot_do_is_said(network: nn.Module, plans: list[Plan], digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(TuneError, match="2 seeds for 3 plans"):
        together(network, plans, digits, seeds=[1, 2])
    with pytest.raises(TuneError, match="twice"):
        together(network, plans, digits, run_dirs=[tmp_path] * 3)
    with pytest.raises(TuneError, match="compile"):
        together(network, plans, digits, recipe=replace(RECIPE, compile=True))
    with pytest.raises(TuneError, match="at least one"):
        tune.fit_fleet(network, [], digits)
    with pytest.raises(TuneError, match="a loss of its own"):
        together(network, plans, replace(digits, loss_fn=nn.functional.multi_margin_loss))


def test_image_files_are_refused(network: nn.Module, plans: list[Plan], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        for name in ("dark", "light"):
            for number in range(4):
                path = tmp_path / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.new("RGB", (20, 16)).save(path)
    with pytest.raises(TuneError, match="comes from image files"):
        together(network, plans, data.load(f"folder:{tmp_path}", val=2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_gpu_one_captured_step_trains_all(
    network: nn.Module, plans: list[Plan], digits: Dataset, precision: str, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, epochs=4, batch_size=128, precision=precision, milestones=(3,), distill=0.2)
    whole = copy.deepcopy(network)
    folders = [tmp_path / str(number) for number in range(3)]
    settings = {"recipe": recipe, "run_dirs": folders, "device": "cuda", "teacher": copy.deepcopy(network)}
    part = together(whole, plans, digits, max_seconds=0.0, **settings)
    assert not any(result.finished for result in part)
    results = together(whole, plans, digits, resume=True, **settings)
    for result, plan, seed in zip(results, plans, SEEDS, strict=True):
        single = alone(network, plan, digits, seed, recipe=recipe, teacher=copy.deepcopy(network))
        assert result.finished and len(result.history) == 4
        assert result.history[-1]["train_loss"] == pytest.approx(single.history[-1]["train_loss"], abs=0.1)
        assert result.val_accuracy == pytest.approx(single.val_accuracy, abs=0.08)
        assert int(result.model.bn1.num_batches_tracked) == int(single.model.bn1.num_batches_tracked)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_on_a_gpu_recipes_of_their_own_are_followed(digits: Dataset, precision: str) -> None:
    recipes = [replace(recipe, epochs=4, batch_size=128, precision=precision) for recipe in VARIANTS]
    ours = starts(digits)
    results = together(ours[0], [None] * 3, digits, models=ours, seeds=None, recipe=recipes, device="cuda")
    for result, begun, recipe in zip(results, starts(digits), recipes, strict=True):
        single = tune.fit(begun, digits, recipe, progress=False, device="cuda")
        assert result.history[-1]["train_loss"] == pytest.approx(single.history[-1]["train_loss"], abs=0.1)
        assert result.val_accuracy == pytest.approx(single.val_accuracy, abs=0.08)
