"""Training inside a method: the plain SGD loop of the baselines that change weights while they choose units.

Where the images given to `prune` come from a `lcprune.data` set, its whole training split is used, with its
augmentation; otherwise the drawn images are. What a step does depends on the seed and its place alone, so a stopped
training goes on as if it had not been.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune.batches import call, collate, need_comparable
from lcprune.errors import ConfigError, TuneError
from lcprune.progress import Progress
from lcprune.task import Task
from lcprune.tune import checkpoint
from lcprune.tune.checkpoint import Place
from lcprune.tune.feed import Feed, make_feed, mix

SECONDS = 20.0  # least time between two writes of the same checkpoint


@dataclass(frozen=True)
class TrainingOptions:
    """SGD with Nesterov momentum; the learning rate falls to zero along a cosine.

    Attributes:
        epochs: passes over the training images.
        lr: learning rate at the start.
        batch_size: images per step.
        momentum: of SGD.
        weight_decay: on all weights.
    """

    epochs: int = 20
    lr: float = 0.01
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(f"epochs={self.epochs} and batch_size={self.batch_size} must be at least 1")
        if not (0 < self.lr < math.inf and 0 <= self.momentum < 1):
            raise ConfigError(f"lr={self.lr} must be positive, and momentum={self.momentum} from 0 to below 1")

    def travel(self, steps: int) -> float:
        """How far a constant gradient of 1 moves a weight in `steps` steps of this training."""
        return self.lr * steps / 2 / (1 - self.momentum)


class TaskFeed:
    """Batches for training, the same ones for the same seed and epoch; a last, smaller batch is left out."""

    def __init__(self, task: Task, batch_size: int) -> None:
        self.seed = task.seed
        self.device = next(task.graph.model.parameters()).device
        self.source: Feed | None = None
        if task.dataset is not None:
            self.source = make_feed(task.dataset, batch_size, True, task.seed, self.device)
            self.images, self.batch, self.steps = len(task.dataset.train), self.source.batch, self.source.steps
        else:
            samples = task.need_labels()
            [self.whole] = collate(samples, len(samples), self.device)
            self.images, self.batch = self.whole.size, min(batch_size, self.whole.size)
            self.steps = self.images // self.batch

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """(inputs, target) batches of one epoch; one epoch at a time."""
        if self.source is not None:
            self.source.start(number, 0)
            for _ in range(self.steps):
                self.source.advance()
                yield self.source.fetch()
                self.source.cursor.add_(1)
        else:
            shuffled = np.random.default_rng(mix(self.seed, number)).permutation(self.images)
            for index in torch.from_numpy(shuffled).to(self.device).split(self.batch)[: self.steps]:
                yield pytree.tree_map(lambda leaf, index=index: leaf[index], (self.whole.inputs, self.whole.target))

    def from_step(self, step: int) -> Iterator[tuple[Any, Any]]:
        """Batches without end, epoch after epoch, from a step on."""
        epoch, skip = divmod(step, self.steps)
        while True:
            for number, batch in enumerate(self.epoch(epoch)):
                if number >= skip:
                    yield batch
            epoch, skip = epoch + 1, 0


class Checkpoint:
    """Weights, `extra` tensors and a little JSON, in a file of the task's folder; without a folder nothing is kept.

    The `settings` must be the same when the task goes on, beside what the task itself says.
    """

    def __init__(
        self, task: Task, name: str, model: nn.Module, extra: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> None:
        self.path = None if task.records is None else task.records.with_name(f"{name}.safetensors")
        self.model, self.extra = model, extra
        self.identity = {} if self.path is None else task.config(**settings)
        self.written = time.monotonic()
        if self.path is not None and self.path.exists() and not task.resume:
            raise ConfigError(f"{self.path} exists already; pass resume=True to go on from it, or name another folder")

    def load(self) -> tuple[int, list[Any]]:
        """Read the file, if there is one, into the live tensors; how many rounds were done, and the notes on them."""
        if self.path is None or not self.path.exists():
            return 0, []
        place = checkpoint.load(self.path, self.model, self.extra, self.identity)
        return place.epoch, place.history

    def save(self, done: int, last: bool, notes: Sequence[Any] = ()) -> None:
        """Write the file, if it is the last time or the last time is long ago."""
        if self.path is not None and (last or time.monotonic() - self.written >= SECONDS):
            checkpoint.save(self.path, self.model, self.extra, Place(done, history=list(notes)), self.identity)
            self.written = time.monotonic()


def optimizer_of(model: nn.Module, settings: TrainingOptions) -> torch.optim.SGD:
    """SGD over what wants a gradient, with its momentum there from the start, so that it can be checkpointed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise TuneError("no parameter of the network wants a gradient: this method trains, and there is nothing to")
    lr, momentum, decay = settings.lr, settings.momentum, settings.weight_decay
    optimizer = torch.optim.SGD(trained, lr, momentum, weight_decay=decay, nesterov=momentum > 0)
    for parameter in trained:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def take_step(
    model: nn.Module,
    batch: tuple[Any, Any],
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Any], Tensor],
    penalty: Callable[[], Tensor] | None = None,
    clip: float | None = None,
) -> Tensor:
    """One update; the loss stays on the device."""
    output = call(model, batch[0])
    need_comparable(loss_fn, output, batch[1])
    loss = loss_fn(output, batch[1])
    whole = loss if penalty is None else loss + penalty()
    optimizer.zero_grad(set_to_none=True)
    whole.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
    optimizer.step()
    return loss.detach()


def train(
    task: Task,
    model: nn.Module,
    settings: TrainingOptions,
    name: str,
    penalty: Callable[[], Tensor] | None = None,
    after_epoch: Callable[[], object] | None = None,
    clip: float | None = None,
) -> None:
    """Train a copy of the task's network, in place; `name` is unique in the task, and that of the checkpoint.

    A `penalty` joins the loss at each step, `after_epoch` may change weights, and `clip` is the longest gradient.
    """
    feed = TaskFeed(task, settings.batch_size)
    optimizer = optimizer_of(model, settings)
    momentum = {f"momentum.{number}": state["momentum_buffer"] for number, state in enumerate(optimizer.state.values())}
    kept = Checkpoint(task, name, model, momentum, asdict(settings))
    done, _ = kept.load()
    with training_mode(model), Progress(name, total=settings.epochs, enabled=task.progress) as bar:
        bar.advance(done)
        for epoch in range(done, settings.epochs):
            losses = []
            for step, batch in enumerate(feed.epoch(epoch)):
                torch.manual_seed(mix(task.seed, epoch, step, 1))  # dropout
                passed = (epoch + step / feed.steps) / settings.epochs
                for group in optimizer.param_groups:
                    group["lr"] = settings.lr * 0.5 * (1 + math.cos(math.pi * passed))
                losses.append(take_step(model, batch, optimizer, task.loss_fn, penalty, clip))
            loss = float(torch.stack(losses).mean())
            if not math.isfinite(loss):
                raise TuneError(f"{name}: the loss is {loss} in epoch {epoch + 1}; a lower lr may help")
            if after_epoch is not None:
                after_epoch()
            kept.save(epoch + 1, last=epoch + 1 == settings.epochs)
            bar.advance(loss=f"{loss:.3f}")


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Training mode inside, evaluation mode after; the process's random numbers are left as they were."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        model.train()
        try:
            yield
        finally:
            model.eval()
            for parameter in model.parameters():
                parameter.grad = None
