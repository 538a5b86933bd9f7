"""Which evaluator fits a network, a device and an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lcprune import bf16
from lcprune.batches import collate
from lcprune.errors import PlanError, SearchError
from lcprune.evaluate.evaluation import Evaluation
from lcprune.evaluate.evaluator import Evaluator, runs
from lcprune.evaluate.prepare import Preparation, parted
from lcprune.evaluate.slicing import SlicingEvaluator
from lcprune.evaluate.zeroing import ZeroingEvaluator
from lcprune.repairs.quick import QuickRepair

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")

_CPU_BATCH = 64
_CPU_BYTES = 2**24  # of a layer's output: larger ones are new pages every time, which take as long as the arithmetic
_GPU_SHARE = 0.5  # of the free memory, for what layers write
_LIVE = 6  # outputs as large as the largest that a forward pass keeps at once, at most
_MOST_ELEMENTS = 2**31 - 1  # per tensor: beyond, libraries change to slower kernels or refuse


def make_evaluator(
    graph: ChannelGraph, samples: Sequence[tuple[Any, Any]], how: Evaluation, quick: QuickRepair | None = None
) -> Evaluator:
    """The evaluator that an evaluation asks for, on drawn images.

    `quick` is what was measured of the network for quick repairs; None measures it where it is needed.

    Raises:
        SearchError: in a precision that does not work on this machine.
    """
    device = next(graph.model.parameters()).device
    bf16.refuse_network(graph.model, device, SearchError)
    fitted, judged = parted(samples, how)
    batches = collate(judged, how.batch_size or default_batch_size(graph, len(judged), device), device)
    to_fit = batches if fitted is judged else collate(fitted, batches[0].size, device)
    preparation = Preparation(graph, to_fit, how, quick) if how.prepares else None
    # What the user prepares is judged in float32.
    precision = "fp32" if how.prepare else bf16.precision_on(how.precision, device, SearchError)
    if precision == "bf16" and not runs(graph.model, batches[0], bf16=True):
        logger.warning("candidates are judged in float32: this network does not run in bf16")
        precision = "fp32"
    zero = how.evaluator == "zero" or (how.evaluator == "auto" and device.type == "cuda")
    if zero and how.prepare is None and not all(group.name in graph.mixing for group in graph.groups):
        try:
            return ZeroingEvaluator(graph, batches, how.loss, precision=precision, preparation=preparation)
        except PlanError as error:
            logger.info("candidates are judged as smaller networks: %s", error)
    precision = "bf16" if precision == "bf16" else "fp32"
    last = device.type == "cpu" and runs(graph.model, batches[0], channels_last=True)
    return SlicingEvaluator(graph, batches, how.loss, prepare=preparation, channels_last=last, precision=precision)


def default_batch_size(graph: ChannelGraph, images: int, device: torch.device) -> int:
    """Images per forward pass: what fits a GPU's memory, or a CPU's caches."""
    cost, largest = graph.cost, graph.cost.largest or 1.0
    if device.type != "cuda":
        # Equal shares for all threads, which take whole batches.
        threads = torch.get_num_threads()
        most = max(1, min(_CPU_BATCH, int(_CPU_BYTES / (4 * largest))))
        rounds = -(-images // (most * threads))
        return max(1, -(-images // (rounds * threads)))
    free, _ = torch.cuda.mem_get_info(device)
    live = min(float(cost.activations(cost.sizes)), _LIVE * largest) or 1.0
    return int(min(images, max(1.0, _GPU_SHARE * free / (4 * live)), max(1.0, _MOST_ELEMENTS / largest)))
