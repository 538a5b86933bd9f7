"""Networks and data that do not fit are refused in words before anything is made of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lcprune
from lcprune import data, models, vision
from lcprune.data import from_arrays

IMAGES, LABELS = torch.randn(8, 1, 6, 6), torch.arange(8) % 3
QUICK = lcprune.LcP(search=lcprune.Search(pool=2, iterations=0))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4, 3)).eval()


def prune(batch, model=None, **options):
    settings = {"method": QUICK, "macs": 0.6, "progress": False, "repair": "none", **options}
    return lcprune.prune(model or network(), IMAGES[:1], data=[batch], **settings)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((IMAGES, LABELS - 1), r"label -1 \(image 0 of 8 drawn\) is none of the 3 classes of the network, 0 to 2"),
        ((IMAGES, LABELS + 1), r"label 3 \(image 2"),
        ((IMAGES, LABELS.float()), r"targets of \[2\] \(float32\).*int64"),
        ((IMAGES, LABELS, LABELS), r"not a tuple of 3.*\(\(first, second\), target\)"),
        ((IMAGES.expand(8, 3, 6, 6), LABELS), r"cannot take the data's inputs, of shape \[3, 6, 6\]"),
    ],
)
def test_data_that_the_network_cannot_take(batch, words):
    with pytest.raises(lcprune.DataError, match=words):
        prune(batch)


class Named(nn.Module):
    """Answers with a dict, as segmentation networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()[:3].append(nn.Conv2d(4, 3, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.inner(x)}


class NamedLoss(nn.CrossEntropyLoss):
    """Takes the scores out of the dict."""

    def forward(self, output: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return super().forward(output["out"], target)


@pytest.mark.parametrize("options", [{}, {"method": "naive", "metric": "taylor"}, {"method": "morphnet"}])
def test_outputs_that_cross_entropy_cannot_compare_are_named(options):
    masks = torch.zeros(8, 4, 4, dtype=torch.int64)
    with pytest.raises(lcprune.DataError, match=r"outputs that are a dict of 'out'.*Evaluation\(data, loss_fn="):
        prune((IMAGES, masks), Named().eval(), **options)
    for loss in (NamedLoss(), lambda output, mask: nn.functional.cross_entropy(output["out"], mask)):
        own = lcprune.Evaluation([(IMAGES, masks)], loss)
        settings = {"method": QUICK, "data": own, "progress": False, **options}
        assert lcprune.prune(Named().eval(), IMAGES[:1], macs=0.6, **settings).plan.macs
    assert prune(IMAGES, Named().eval()).plan.macs


def test_targets_that_cross_entropy_cannot_compare_are_named():
    with pytest.raises(lcprune.DataError, match=r"targets that are a dict of 'kind'"):
        lcprune.pareto(network(), IMAGES[:1], macs=[0.6], methods=[QUICK], data=[(IMAGES, {"kind": LABELS})])


def test_targets_that_nobody_looks_at_need_not_fit_together():
    """Boxes are often padded batch by batch."""
    data = [(IMAGES[:4], torch.zeros(4, 3, 4)), (IMAGES[4:], torch.zeros(4, 5, 4))]
    for method, evaluation in (("naive", data), (QUICK, lcprune.Evaluation(data, loss_fn="distance"))):
        result = lcprune.prune(network(), IMAGES[:1], macs=0.6, method=method, data=evaluation, progress=False)
        assert result.repair is not None and result.repair.how != "none"
    assert lcprune.repair(network(), result.plan, data, progress=False)


def test_networks_without_numbers_are_refused():
    bare, x = network().to("meta"), IMAGES[:1].to("meta")
    with pytest.raises(lcprune.ModelError, match=r"0\.weight has no numbers.*load weights"):
        lcprune.prune(bare, x, macs=0.6, method=QUICK, data=[IMAGES.to("meta")], progress=False)
    assert lcprune.trace(bare, x).groups


def test_networks_for_one_size_of_batches_are_refused():
    exported = torch.export.export(network(), (IMAGES[:2],)).module()
    with pytest.raises(lcprune.DataError, match=r"takes 2 images at once, but not 4.*dynamic_shapes"):
        lcprune.prune(exported, IMAGES[:2], macs=0.6, method=QUICK, data=[IMAGES], progress=False)


def test_labels_that_nobody_looks_at_and_left_out_pixels_are_fine():
    assert prune((IMAGES, LABELS - 1), method="naive").plan.macs
    assert prune((IMAGES, LABELS.where(LABELS > 0, -100))).plan.macs
    with pytest.raises(lcprune.DataError, match="label -1"):
        prune((IMAGES, LABELS - 1), method="naive", metric="taylor")


@pytest.mark.parametrize("name", ["0.weight", "1.running_mean"])
def test_nan_in_the_network_is_named_and_leaves_no_folder(name, tmp_path):
    broken = network()
    with torch.no_grad():
        broken.state_dict()[name].view(-1)[0] = float("nan")
    with pytest.raises(lcprune.ModelError, match=f"{name} holds NaN"):
        prune((IMAGES, LABELS), broken, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert prune((IMAGES, LABELS), run=lcprune.Job(tmp_path / "run", resume=True)).plan.macs


def test_repair_refuses_other_channels():
    plan = prune((IMAGES, LABELS), method="naive").plan
    with pytest.raises(lcprune.DataError, match="cannot take the data's inputs"):
        lcprune.repair(network(), plan, [IMAGES.expand(8, 3, 6, 6)])


def test_settings_of_the_wrong_kind_name_the_way_out():
    with pytest.raises(lcprune.SearchError, match=r"search=\{'pool': 4\}.*lcprune\.Search\("):
        lcprune.LcP(search={"pool": 4})
    with pytest.raises(lcprune.ConfigError, match=r"tune='finetune'.*lcprune\.tune\.fit"):
        lcprune.prune_in_steps(network(), IMAGES[:1], macs=0.6, tune="finetune", method="naive")


def test_labels_of_a_data_set_are_checked(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef build():\n    x = np.zeros((4, 8, 8, 1), np.uint8)\n"
        "    return dict(x_train=x, y_train=np.array([0, 1, -1, 1]), x_test=x, y_test=np.array([0, 1, 0, 1]))\n"
    )
    with pytest.raises(lcprune.DataError, match=r"label -1 \(image 2 of train\) is none of the 2 classes"):
        data.load(f"{tmp_path / 'mine.py'}:build")


def test_nobody_downloads_a_backbone_that_was_not_asked_for(monkeypatch):
    vision.import_torchvision()
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", None)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", None)
    assert models.build("torchvision:lraspp_mobilenet_v3_large", num_classes=3)


@pytest.mark.parametrize(("sides", "size"), [([20], 20), ([20, 30], 224), ([230, 260], 224)])
def test_small_images_of_one_size_are_taken_as_they_are(sides, size, tmp_path, caplog):
    image = pytest.importorskip("PIL.Image")
    for place, name in enumerate("abcd" * 3):
        (tmp_path / name).mkdir(exist_ok=True)
        side = sides[place % len(sides)]
        image.new("RGB", (side, side)).save(tmp_path / name / f"{place}.png")
    with caplog.at_level("WARNING", "lcprune"):
        dataset = data.load(f"folder:{tmp_path}")
    assert dataset.input_shape == (3, size, size)
    assert next(iter(dataset.batches("test")))[0].shape[2] == size
    assert ("scaled to inputs of 224x224" in caplog.text) == (sides == [20, 30])


def test_nothing_prints_pages():
    """A result, and all that hangs on it, is read in a few lines."""
    many = torch.zeros(64, 8, 8, 1, dtype=torch.uint8).numpy()
    labels = torch.arange(64).numpy() % 3
    dataset = from_arrays("many", {"x_train": many, "y_train": labels, "x_test": many, "y_test": labels})
    result = prune((IMAGES, LABELS))
    graph = lcprune.trace(network(), IMAGES[:1])
    things = [result, result.plan, result.history, result.steps[0], graph, graph.groups[0], graph.groups[0].members[0]]
    things += [graph.cost, dataset, dataset.train, dataset.batches("train"), lcprune.Evaluation([(IMAGES, LABELS)] * 9)]
    frontier = lcprune.pareto(graph, data=[(IMAGES, LABELS)], macs=[0.6], methods=["naive"], progress=False)
    for thing in [*things, frontier, frontier.points[0]]:
        assert len(repr(thing)) < 600 and "tensor(" not in repr(thing), repr(thing)
    for thing in (result, result.plan, graph):
        table = thing._repr_html_()
        for line in thing.summary().splitlines()[2:4]:
            assert f'<th scope="{"col" if line.startswith("layer") else "row"}">{line.split()[0]}</th>' in table
