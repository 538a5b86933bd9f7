"""What runs in the worker processes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from lcprune.batches import collate
from lcprune.copies import copy_of
from lcprune.engine.desk import speaking, whereabouts
from lcprune.evaluate import Evaluation, Evaluator, make_evaluator

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph


Answer = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Case:
    """Everything it takes to judge candidates; travels to each machine once."""

    graph: ChannelGraph  # on the CPU
    images: Any  # (input, target) of all, stacked; NumPy arrays, which processes of a machine share
    how: Evaluation
    threads: int  # for computing on a CPU

    @classmethod
    def pack(cls, graph: ChannelGraph, samples: Sequence[tuple[Any, Any]], how: Evaluation, threads: int) -> Case:
        """Make it ready to travel."""
        batch = collate(samples, len(samples), "cpu")[0]
        images = pytree.tree_map(_to_array, (batch.inputs, batch.target))
        return cls(on_device(graph, torch.device("cpu")), images, how, threads)

    def evaluator(self) -> Evaluator:
        """What judges the candidates, on this worker's device."""
        stacked = pytree.tree_map_only(np.ndarray, torch.tensor, self.images)  # a copy: the shared one is read-only
        rows = range(len(pytree.tree_leaves(stacked)[0]))
        samples = [pytree.tree_map(lambda leaf: leaf[row], stacked) for row in rows]  # noqa: B023
        return make_evaluator(on_device(self.graph, own_device()), samples, self.how)


class Worker:
    """An actor that judges candidates; it keeps the network and the images of the search under way."""

    def __init__(self) -> None:
        self.case: str | None = None
        self.judges: dict[bool, Evaluator] = {}  # by whether they are exact

    def whereabouts(self) -> str:
        """Where the worker is, once it is anywhere."""
        return whereabouts()

    def loss(self, name: str, desk: Any, case: list[Any], selection: bytes, exact: bool) -> Answer:
        """Loss of a selection, and the seconds spent preparing and evaluating it.

        Args:
            case: reference of a `Case`, in a list, so that it is fetched only if it is not here yet.
            exact: in true float32, whatever candidates are ranked in.
        """
        with speaking(desk, name):
            if self.case != case[0].hex():
                self._begin(case[0])
            if exact not in self.judges:
                self.judges[exact] = self.judges[False].exactly()
            judge = self.judges[exact]
            before = replace(judge.work)
            loss = judge.loss(unpack(selection, [group.size for group in judge.graph.groups]))
            return loss, judge.work.preparing - before.preparing, judge.work.evaluating - before.evaluating

    def _begin(self, reference: Any) -> None:
        import ray

        self.case, self.judges = None, {}  # the old network goes before the new one comes
        case: Case = ray.get(reference)
        torch.set_num_threads(case.threads)
        self.judges[False] = case.evaluator()
        self.case = reference.hex()


def run_task(task: Callable[[Any], Any], item: Any, name: str, desk: Any, threads: int) -> Any:
    """One call of `Engine.map`, in a worker process."""
    torch.set_num_threads(threads)
    with speaking(desk, name):
        return task(item)


def on_device(graph: ChannelGraph, device: torch.device) -> ChannelGraph:
    """The graph with its example inputs, and a copy of its network if it is not there yet, on a device."""
    there = next(graph.model.parameters()).device == device
    return replace(
        graph,
        model=graph.model if there else copy_of(graph.model).to(device),
        example_inputs=pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device), graph.example_inputs),
    )


def own_device() -> torch.device:
    """The GPU that Ray gave this process, or the CPU."""
    import ray

    return torch.device("cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu")


def unpack(selection: bytes, sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Kept units of each group, from one bit per unit (`Evaluator._key`)."""
    bits = np.unpackbits(np.frombuffer(selection, dtype=np.uint8), count=sum(sizes))
    parts = np.split(bits, np.cumsum(sizes)[:-1])
    return [np.flatnonzero(part).astype(np.int64) for part in parts]


def _to_array(leaf: Any) -> Any:
    try:
        return leaf.numpy()
    except (TypeError, RuntimeError):  # bfloat16 has no NumPy type
        return leaf
