"""What must hold of every network and every cut of it."""

from __future__ import annotations

import contextlib
import copy
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import lcprune

from .programs import Network

GRAPH = str(Path(__file__).parents[1] / "graph")
if GRAPH not in sys.path:
    sys.path.insert(0, GRAPH)

from oracle import counted_activations, counted_macs, counted_params, silenced_outputs, worst_difference  # noqa: E402
from selections import wrong_attributes  # noqa: E402

Kept = dict[str, list[int]]

# Where a NaN does not show which channel it came from, and where a weight's columns give channels too, the oracle is
# blind.
_HIDES = re.compile(
    r"\.item\(\)|sort\(|topk|argmax|\) > 0|> 0\)\.to|sign\(\)|nan_to_num|einsum\('\w+,\w+,"
    r"|:[\d:]*\] = 0|zero_\(\)|weight\.flatten\(1\)\.t\(\)|conv_transpose\dd\(F"
)
_ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-3}


class Failure(Exception):
    """A law does not hold.

    Args:
        law: which.
        error: how that showed.
        kept: the selection, if it was made.
    """

    def __init__(self, law: str, error: Exception, kept: Kept | None) -> None:
        super().__init__(f"{law}: {type(error).__name__}: {str(error).strip()[:400]}")
        self.law, self.error, self.kept = law, error, kept

    @property
    def kind(self) -> tuple[str, type]:
        """What a smaller network must show to be the same failure."""
        return self.law, type(self.error)


@dataclass
class Report:
    """What was seen of a network.

    Attributes:
        units: how many could be cut.
        removed: how many were.
        refused: a selection with one unit of a group, said to be impossible.
        oracle: the oracle had a say.
        wrong: a wrong cut was made and seen.
        repaired: it was repaired.
    """

    units: int = 0
    removed: int = 0
    refused: bool = False
    oracle: bool = False
    wrong: bool = False
    repaired: bool = False


def check(network: Network, seed: int, kept: Kept | None = None, only: str = "") -> Report:
    """Check all laws of a network.

    Args:
        network: whose default dtype is set.
        seed: of what is chosen at random.
        kept: a selection; drawn if None.
        only: the law to check; those that it does not need are left out.

    Raises:
        Failure: one of them does not hold.
    """
    return _Check(network, seed, kept, only).run()


class _Check:
    def __init__(self, network: Network, seed: int, kept: Kept | None, only: str) -> None:
        self.network, self.kept, self.only = network, kept, only
        self.random = np.random.default_rng(seed)
        self.report = Report()

    @contextlib.contextmanager
    def law(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise Failure(name, error, self.kept) from error

    def wanted(self, name: str, chance: float = 1.0) -> bool:
        drawn = self.random.random() < chance
        return self.only == name or (not self.only and drawn)

    def run(self) -> Report:
        model, inputs = self.network.model(), self.network.inputs()
        before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
        with self.law("trace"):
            graph = lcprune.trace(model, inputs)
        with self.law("untouched"):
            assert [module.training for module in model.modules()] == modes, "modes changed"
            assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        self.report.units = sum(group.size for group in graph.groups)
        if self.kept is None:
            self.kept = select(graph, self.random)
        self.report.removed = self.report.units - sum(map(len, self.kept.values()))
        with self.law("plan"):
            try:
                plan = graph.plan(self.kept)
            except lcprune.PlanError:
                if min(map(len, self.kept.values())) > 1:
                    raise
                self.report.refused = True  # one unit alone: code may see a single channel in another way
                return self.report
        with self.law("apply"):
            small = plan.apply(model)
            assert [module.training for module in small.modules()] == modes, "modes changed"
        model.eval(), small.eval()
        expected = run(model, inputs)
        with self.law("run"):
            found = run(small, inputs)
            assert [_form(leaf) for leaf in tree_leaves(found)] == [_form(leaf) for leaf in tree_leaves(expected)]
        if not all(tensor.isfinite().all() for tensor in (_numbers(expected), _numbers(found))):
            return self.report  # the deviation of a single channel, say
        # Of one channel alone `einsum` makes no matrix product, which costs nothing.
        exact = not ("einsum" in self.network.source and 1 in map(len, self.kept.values()))
        if exact and self.wanted("cost"):
            with self.law("cost"):
                self._cost(graph, plan, model, small, inputs)
        if self.wanted("attributes"):
            with self.law("attributes"):
                assert (wrong := wrong_attributes(small, _fresh(inputs))) == [], wrong
        if self.wanted("verify") or self.wanted("oracle"):
            with self.law("verify"):
                verification = lcprune.verify(model, plan, inputs)
                assert verification.ok or not _numbers(found).count_nonzero(), verification
        # A number made of a size (1 / sqrt(channels)) changes with the cut, as the code says.
        if self.wanted("oracle") and not verification.sized and not _HIDES.search(self.network.source):
            with self.law("oracle"):
                self._oracle(graph, model, inputs)
        if exact and self.wanted("again", 0.5):
            with self.law("again"):
                second = lcprune.trace(small, inputs)
                said = (second.macs, second.params), (plan.macs, plan.params)
                assert said[0] == said[1], f"{said[0]} when traced again, {said[1]} planned"
        if self.wanted("files", 0.3):
            with self.law("files"):
                self._files(plan, small, found, inputs)
        if self.wanted("wrong cut", 0.3):
            with self.law("wrong cut"):
                self._wrong_cut(graph, model, plan, small, inputs)
        if self.wanted("train", 0.5):
            with self.law("train"):
                _train(model, small, inputs)
        if self.wanted("repair", 0.1) and len(inputs) == 1 and isinstance(expected, Tensor) and self.report.removed:
            with self.law("repair"):
                self._repair(plan, inputs)
        return self.report

    def _cost(self, graph: Any, plan: Any, model: nn.Module, small: nn.Module, inputs: Sequence[Tensor]) -> None:
        for said, network in ((graph, model), (plan, small)):
            try:
                true = counted_macs(network, inputs), counted_params(network)
            except RuntimeError as error:
                if network is model and "modified inplace" in str(error):
                    return  # it has no gradients, by which the counter goes
                raise
            assert (said.macs, said.params) == true, f"{said.macs, said.params} said, {true} counted"
        counts = [len(self.kept[group.name]) for group in graph.groups]
        said, true = graph.cost.activations(counts), counted_activations(small, inputs)
        assert said == true, f"{said} activations said, {true} counted"

    def _oracle(self, graph: Any, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Of groups whose units do not influence one another: there silencing is removal."""
        kept = {name: own for name, own in self.kept.items() if name not in graph.mixing}
        found = run(graph.plan(kept).apply(model), inputs)
        apart = worst_difference(_tensors(found), _tensors(silenced_outputs(model, inputs, graph, kept)))
        assert apart < _ROUNDING[inputs[0].dtype], f"{apart:.3g} from the silenced network"
        self.report.oracle = True

    def _files(self, plan: Any, small: nn.Module, found: Any, inputs: Sequence[Tensor]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lcprune.save(folder, small, plan)
            loaded = lcprune.load(folder, self.network.model()).eval()
        assert worst_difference(_tensors(run(loaded, inputs)), _tensors(found)) == 0, "another network was loaded"

    def _wrong_cut(self, graph: Any, model: nn.Module, plan: Any, small: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Another unit stays in place of one: `verify` must see it wherever that makes a difference."""
        partly = [group for group in graph.groups if len(self.kept[group.name]) < group.size]
        if not partly:
            return
        group = partly[self.random.integers(len(partly))]
        own = self.kept[group.name]
        other = self.random.choice(np.setdiff1d(np.arange(group.size), own))
        wrong = graph.plan({**self.kept, group.name: sorted([*own[1:], int(other)])}).apply(model).eval()
        if worst_difference(_tensors(run(wrong, inputs)), _tensors(run(small, inputs))) > 0.02:
            assert not lcprune.verify(model, plan, inputs, wrong), "a wrong cut was passed"
            self.report.wrong = True

    def _repair(self, plan: Any, inputs: Sequence[Tensor]) -> None:
        model = self.network.model().eval()
        images = torch.randn(12, *inputs[0].shape[1:], generator=torch.Generator().manual_seed(0))
        try:
            expected = run(model, (images,))
        except Exception:  # it takes batches of one size
            return
        mended = lcprune.repair(model, plan, [images], progress=False)
        assert all(tensor.isfinite().all() for tensor in mended.state_dict().values()), "not finite"
        far = [float((run(net.eval(), (images,)) - expected).square().sum()) for net in (mended, plan.apply(model))]
        assert far[0] <= far[1] * (1 + 1e-4) + 1e-9, f"{far[0]:.6g} from the whole network, {far[1]:.6g} as cut"
        self.report.repaired = True


def select(graph: Any, rng: np.random.Generator) -> Kept:
    """Kept units per group: some of each, one of each, all but one, or some of a single group."""
    kind = rng.choice(["some", "some", "some", "one", "all but one", "single", "mixed"])
    single = rng.integers(max(len(graph.groups), 1))
    kept = {}
    for place, group in enumerate(graph.groups):
        counts = {"one": 1, "all but one": group.size - 1, "some": int(rng.integers(1, group.size + 1))}
        counts["single"] = counts["some"] if place == single else group.size
        counts["mixed"] = int(rng.choice([1, group.size - 1, group.size, counts["some"]]))
        kept[group.name] = sorted(rng.choice(group.size, counts[str(kind)], replace=False).tolist())
    return kept


@torch.no_grad()
def run(model: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """The outputs; the network may write into its inputs."""
    return model(*_fresh(inputs))


def _fresh(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in inputs)


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _numbers(outputs: Any) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in _tensors(outputs)])


def _form(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _train(model: nn.Module, small: nn.Module, inputs: Sequence[Tensor]) -> None:
    """One step, wherever the whole network can do one."""
    without = []
    for place, network in enumerate((copy.deepcopy(model), copy.deepcopy(small))):
        network.train()
        try:
            outputs = _tensors(network(*_fresh(inputs)))
            sum(tensor.square().mean() for tensor in outputs).backward()
        except Exception:
            if place == 0:
                return
            raise
        without.append([name for name, parameter in network.named_parameters() if parameter.grad is None])
        torch.optim.SGD(network.parameters(), 1e-3).step()
    assert without[0] == without[1], f"without a gradient: {without[1]}, before: {without[0]}"
    assert all(parameter.isfinite().all() for parameter in network.parameters()), "not finite"
    assert math.isfinite(float(_numbers(run(network, inputs)).sum()))
