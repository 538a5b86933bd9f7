"""Judging candidates inside one persistent copy of the network: removed units are silenced at consumers.

A unit whose columns are zero in every convolution and linear layer that reads it cannot be told from a unit
that is not there, whatever bias, batch norm or activation lies between. So a candidate is one vector of
flags; writing it into the weights is one gather and one product over all of them; and the forward pass always
has the same shapes and addresses, so that on a GPU it is captured once as a CUDA graph and replayed.

Where units of a group are mixed by something other than weights (a normalisation over channels), silence is
not removal: such candidates are sliced instead.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lcprune import bf16
from lcprune.batches import Batch, arithmetic, call
from lcprune.copies import copy_to_run
from lcprune.errors import SearchError, first_line
from lcprune.evaluate import kernels
from lcprune.evaluate.evaluator import Evaluator, LossFn, mean_loss, runs, some_of
from lcprune.evaluate.fold import agree, fold_
from lcprune.evaluate.fuse import Fused
from lcprune.evaluate.prepare import Preparation
from lcprune.evaluate.slicing import SlicingEvaluator
from lcprune.evaluate.switchboard import RepairedBoard, Switchboard
from lcprune.select import Kept

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")


class ZeroingEvaluator(Evaluator):
    """Silences removed units of one folded copy, in place, and runs it; on a GPU as a captured graph.

    Args:
        graph, batches, loss_fn: as for every `Evaluator`.
        precision: "fp32" (TF32 off), "tf32" or "bf16".
        fold: whether to fold batch norm.
        capture: whether to capture a CUDA graph; of no effect off a GPU.
        channels_last: memory layout of images and weights; None chooses the faster one.
        fuse: run convolutions together with the addition and ReLU behind them; None does so on a GPU.
        preparation: what candidates get before they are judged, in closed form; None judges them as they are cut.

    Raises:
        PlanError: silence cannot stand for removal, or masks for a repair.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        batches: Sequence[Batch],
        loss_fn: LossFn,
        precision: str = "fp32",
        fold: bool = True,
        capture: bool = True,
        channels_last: bool | None = None,
        fuse: bool | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        super().__init__(graph, batches, loss_fn)
        started = time.perf_counter()
        self.device = next(graph.model.parameters()).device
        cuda = self.device.type == "cuda"
        self.precision = precision = bf16.precision_on(precision, self.device, SearchError)
        self.preparation = preparation
        self.fallback = SlicingEvaluator(graph, self.batches, loss_fn, preparation, fold)
        self.fallback.work = self.work
        if fuse is None:
            fuse = cuda and precision != "tf32" and kernels.available()
        if channels_last is None:
            faster = fuse or (cuda and precision != "fp32")
            channels_last = faster and runs(graph.model, self.batches[0], channels_last=True)
        self.channels_last = channels_last
        self.model = copy_to_run(graph.model).requires_grad_(False)
        fold_(self.model, self.fallback.pairs)
        self.board = self._board()
        self._check_silence()
        if precision == "bf16":
            # The check left units switched off; the new buffers must start from whole weights.
            self.board.set(np.ones(self.board.units, dtype=np.bool_))
            with arithmetic(), torch.inference_mode():
                self.board.write()
            self.model.to(torch.bfloat16)
            self.board = self._board()
        self._inputs = [batch.bfloat16() for batch in self.batches] if precision == "bf16" else self.batches
        if channels_last:
            self._inputs = [batch.channels_last() for batch in self._inputs]
        self.forward: Callable[..., Any] = self._fuse() if fuse else self.model
        self._replay = self._capture() if capture and cuda and self.exact else None
        self._timed("preparing", started)

    def compute(self, kept: Kept) -> float:
        if self._must_slice(kept):
            return self.fallback.compute(kept)
        started = time.perf_counter()
        self.board.set(self._mask(kept))
        with arithmetic(self.precision), torch.inference_mode():
            if self._replay is not None:
                graph, result = self._replay
                graph.replay()
                self._timed("preparing", started)
                started = time.perf_counter()
                value = float(result)  # waits for the device
            else:
                self.board.write()
                started = self._timed("preparing", started)
                value = float(mean_loss(self.forward, self._inputs, self.loss_fn))
        self._timed("evaluating", started)
        if not math.isfinite(value) and self.forward is not self.model:
            return self.fallback.compute(kept)  # more than a half can hold, or truly not finite
        return value

    def exactly(self) -> Evaluator:
        # Not captured, nothing compiled: for a handful of selections that would take longer than it saves.
        return ZeroingEvaluator(
            self.graph, self.batches, self.loss_fn, capture=False, fuse=False, preparation=self.preparation
        )

    def _board(self) -> Switchboard | RepairedBoard:
        if self.preparation is None:
            return Switchboard(self.graph, self.model, channels_last=self.channels_last)
        if self.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return RepairedBoard(self.graph, self.model, self.fallback.pairs, self.preparation)

    def _must_slice(self, kept: Kept) -> bool:
        if not self.exact or (self.preparation is not None and self.is_whole(kept)):
            return True
        groups = zip(self.graph.groups, kept, strict=True)
        return any(len(units) < group.size for group, units in groups if group.name in self.graph.mixing)

    def _check_silence(self) -> None:
        """Compare silence with removal on one selection and a few images: no mistake goes unseen."""
        probe = [
            np.arange(group.size) if group.name in self.graph.mixing else np.arange(0, group.size, 2)
            for group in self.graph.groups
        ]
        few = some_of(self.batches[0], 8).inputs
        with arithmetic("fp32"), torch.inference_mode():
            self.board.set(self._mask(probe))
            self.board.write()
            silenced = call(self.model, few)
            plan = self.graph.plan(probe)
            smaller = plan.apply(self.graph.model).eval()
            if self.preparation is not None:
                self.preparation(smaller, plan)
            sliced = call(smaller, few)
        self.exact = agree(silenced, sliced)
        if not self.exact:
            logger.warning("candidates are judged as smaller networks: silenced units of this network still matter")

    def _fuse(self) -> Callable[..., Any]:
        """The fused network, if it runs here and computes what the network does."""
        fused = Fused(self.model)
        few = some_of(self._inputs[0], 8).inputs
        try:
            with arithmetic(self.precision), torch.inference_mode():
                if agree(call(fused, few), call(self.model, few), 1e-4 if self.precision == "fp32" else 5e-2):
                    return fused
            logger.warning("convolutions are not fused: the fused network computes something else")
        except Exception as error:
            logger.warning("convolutions are not fused: %s", first_line(error))
        return self.model

    def _capture(self) -> tuple[Any, torch.Tensor] | None:
        def forward() -> torch.Tensor:
            self.board.write()
            return mean_loss(self.forward, self._inputs, self.loss_fn)

        try:
            with torch.cuda.device(self.device), arithmetic(self.precision), torch.inference_mode():
                stream = torch.cuda.Stream(self.device)
                stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(stream):  # libraries allocate and choose algorithms before the capture
                    for _ in range(2):
                        forward()
                torch.cuda.current_stream(self.device).wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    result = forward()
        except RuntimeError as error:
            logger.warning("judging candidates without a CUDA graph: %s", first_line(error))
            torch.cuda.synchronize(self.device)
            return None
        self.work.captures += 1
        return graph, result
