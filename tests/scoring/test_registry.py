"""Metrics of one's own: functions, and the decorator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lcprune
from lcprune.errors import MetricError


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(lcprune.metrics, "_known", dict(lcprune.metrics._known))


def test_a_function_of_the_graph_will_do(small: SimpleNamespace) -> None:
    found = lcprune.metrics.score(small.graph, lambda graph: [np.arange(g.size) for g in graph.groups])
    assert [array.tolist() for array in found] == [list(range(g.size)) for g in small.graph.groups]


def test_scores_may_be_a_dictionary_of_tensors(small: SimpleNamespace) -> None:
    def ones(graph: Any) -> dict[str, torch.Tensor]:
        return {group.name: torch.ones(group.size) for group in reversed(graph.groups)}

    assert all((array == 1).all() and array.dtype == np.float64 for array in lcprune.metrics.score(small.graph, ones))


@pytest.mark.usefixtures("registry")
def test_the_decorator_makes_a_name(small: SimpleNamespace) -> None:
    @lcprune.metrics.register("largest", needs_data=False)
    def largest(graph: Any) -> Any:
        """The largest weight."""
        return lcprune.metrics.sum_filters(graph, lambda filters: filters.abs().amax(1))

    assert "largest" in lcprune.metrics.names()
    assert lcprune.metrics.get("largest").summary == "The largest weight."
    found = dict(zip((g.name for g in small.graph.groups), lcprune.metrics.score(small.graph, "largest"), strict=True))
    np.testing.assert_allclose(found["conv1"], small.model.conv1.weight.detach().abs().amax((1, 2, 3)))
    with pytest.raises(MetricError, match="'largest' exists already"):
        lcprune.metrics.register("largest")(largest)


@pytest.mark.usefixtures("registry")
def test_a_registered_metric_gets_data_loss_and_seed(small: SimpleNamespace) -> None:
    @lcprune.metrics.register("images", needs_data=True)
    def images(graph: Any, context: lcprune.metrics.Context) -> Any:
        assert context.data is not None and context.seed == 5
        assert context.loss_fn is torch.nn.functional.mse_loss
        return [np.full(group.size, sum(len(x) for x, _ in context.data)) for group in graph.groups]

    with pytest.raises(MetricError, match="'images' needs data"):
        lcprune.metrics.score(small.graph, "images")
    found = lcprune.metrics.score(
        small.graph, "images", data=small.batches, loss_fn=torch.nn.functional.mse_loss, seed=5
    )
    assert all((array == 12).all() for array in found)


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(MetricError, match=r"no metric 'tailor'\. Did you mean 'taylor'\?.*l2_norm"):
        lcprune.metrics.get("tailor")


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (lambda graph: [np.ones(g.size) for g in graph.groups][1:], "gave 4 arrays for 5 groups"),
        (lambda graph: {g.name: np.ones(g.size) for g in graph.groups[1:]}, r"no scores for \['"),
        (lambda graph: {"x": 1, **{g.name: np.ones(g.size) for g in graph.groups}}, r"\['x'\], not groups"),
        (lambda graph: [np.ones(g.size + 1) for g in graph.groups], r"scores of shape \(\d,\); one per unit"),
        (lambda graph: [np.full(g.size, -np.inf) for g in graph.groups], r"the score -inf \(unit 0\)"),
        (lambda graph: 3, "gave a int"),
    ],
)
def test_scores_that_do_not_fit_are_refused(small: SimpleNamespace, scores: Any, said: str) -> None:
    with pytest.raises(MetricError, match=said):
        lcprune.metrics.score(small.graph, scores)


def test_something_else_than_a_metric_is_refused(small: SimpleNamespace) -> None:
    with pytest.raises(MetricError, match=r"metric=3 is neither a name nor a function"):
        lcprune.metrics.score(small.graph, 3)  # type: ignore[arg-type]


def test_random_follows_its_seed(small: SimpleNamespace) -> None:
    first, again, other = (lcprune.metrics.score(small.graph, "random", seed=seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not any((a == b).any() for a, b in zip(first, other, strict=True))


def test_l2_normalised_groups_have_length_one(small: SimpleNamespace) -> None:
    for array in lcprune.metrics.l2_normalised(lcprune.metrics.score(small.graph, "l1")):
        np.testing.assert_allclose(np.linalg.norm(array), 1)
    assert lcprune.metrics.l2_normalised([np.zeros(3)])[0].tolist() == [0, 0, 0]
