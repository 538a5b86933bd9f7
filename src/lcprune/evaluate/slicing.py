"""Judging physically smaller networks: on a CPU fewer multiply-adds are fewer seconds."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import nn

from lcprune import bf16
from lcprune.batches import Batch, arithmetic, loss_of
from lcprune.errors import SearchError
from lcprune.evaluate.evaluator import Evaluator, LossFn, output_of
from lcprune.evaluate.fold import checked_pairs, fold_
from lcprune.plan import Plan
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

_TEAMS = 8  # each has a copy of every candidate's modules, which takes milliseconds to make


class SlicingEvaluator(Evaluator):
    """Cuts each candidate out of the network, folds its batch norms and runs it.

    On a CPU each core, or each of a few teams of them, runs whole batches of its own: layers this small are done
    before many cores have agreed on how to share one.

    Args:
        graph, batches, loss_fn: as for every `Evaluator`.
        prepare: changes each candidate, in place, before it is judged.
        fold: whether to fold batch norm; off, the candidate runs as it is.
        channels_last: memory layout of images and weights.
        precision: "fp32", or "bf16" for networks that only have to be ranked.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        batches: Sequence[Batch],
        loss_fn: LossFn,
        prepare: Callable[[nn.Module, Plan], None] | None = None,
        fold: bool = True,
        channels_last: bool = False,
        precision: str = "fp32",
    ) -> None:
        batches = [batch.channels_last() for batch in batches] if channels_last else batches
        super().__init__(graph, batches, loss_fn)
        started = time.perf_counter()
        device = next(graph.model.parameters()).device
        self.prepare, self.channels_last = prepare, channels_last
        self.precision = bf16.precision_on(precision, device, SearchError)
        self.pairs = checked_pairs(graph, self.batches[0].inputs) if fold else []
        self._inputs = [batch.bfloat16() for batch in self.batches] if precision == "bf16" else self.batches
        self.teams = min(_TEAMS, torch.get_num_threads(), len(self.batches)) if device.type == "cpu" else 1
        self._pool = _make_teams(self.teams) if self.teams > 1 else None
        self._timed("preparing", started)

    def exactly(self) -> Evaluator:
        return SlicingEvaluator(
            self.graph, self.batches, self.loss_fn, self.prepare, bool(self.pairs), self.channels_last
        )

    def compute(self, kept: Kept) -> float:
        self.work.sliced += 1
        started = time.perf_counter()
        plan = self.graph.plan(list(kept))
        model = plan.apply(self.graph.model).eval()
        if self.prepare is not None and not self.is_whole(kept):
            self.prepare(model, plan)
        with arithmetic(), torch.inference_mode():
            fold_(model, self.pairs)
            if self.channels_last:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if self.precision == "bf16":
                model.to(torch.bfloat16)
            started = self._timed("preparing", started)
            loss = self._judge(model)
        self._timed("evaluating", started)
        return loss

    def _judge(self, model: nn.Module) -> float:
        # Modules may keep things on themselves while they run, so no two threads share one; weights are shared.
        weights = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        copies = [model, *(copy.deepcopy(model, dict(weights)) for _ in range(self.teams - 1))]

        def share(number: int) -> list[float]:
            with torch.inference_mode():
                own = ((output_of(copies[number], batch), batch.target) for batch in self._inputs[number :: self.teams])
                return [float(loss_of(self.loss_fn, *pair)) for pair in own]

        shares = [share(0)] if self._pool is None else list(self._pool.map(share, range(self.teams)))
        # Added up in the order of the batches, whichever team was first.
        sizes = [batch.size for batch in self._inputs]
        losses = (shares[index % self.teams][index // self.teams] for index in range(len(sizes)))
        return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)


def _make_teams(teams: int) -> ThreadPoolExecutor:
    """Threads in which PyTorch uses its share of the cores; the caller's own number of threads stays."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(teams, "judge", initializer=torch.set_num_threads, initargs=(threads // teams,))
    together = threading.Barrier(teams)
    list(pool.map(lambda _: together.wait(), range(teams)))
    torch.set_num_threads(threads)
    return pool
