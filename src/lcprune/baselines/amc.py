"""AMC: He et al., AMC: AutoML for model compression and acceleration on mobile devices, ECCV 2018."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lcprune.baselines.ddpg import Agent, Transition
from lcprune.baselines.layers import layers_of
from lcprune.batches import draw
from lcprune.errors import ConfigError, SearchError
from lcprune.method import Method, methods
from lcprune.progress import Progress
from lcprune.search import Record
from lcprune.task import Choice, Task

_FEATURES = 11


@methods.register("amc", needs_data=True)
@dataclass(frozen=True)
class Amc(Method):
    """A DDPG agent walks through the layers and says how much of each stays; rewarded by accuracy (He et al. 2018).

    State (published): number, units, input channels, height, width, stride and kernel of the layer, its MACs, MACs
    removed before it, MACs left after it, the action before. Action: the share that stays, bounded so that the limit
    can still be met with every later layer at its floor. Which units of a layer go is the metric's choice. 400
    episodes with 100 of warm-up, two hidden layers of 300, as published.

    Differs from the published set-up: a residual group is one layer; the floor is `min_keep` (published 20 %); which
    units go is `metric=`, by default l2; weights that remain are not fitted by least squares, as the authors' code does
    for 1x1 convolutions; channels are not rounded to multiples of 8 (`multiple_of=8` does). As in that code,
    warm-up actions are uniform, every layer of an episode gets the reward of its end less a moving average, and the
    noise falls by 5 % per episode; the code's default is 800 episodes, the paper's search 400.

    Published: ResNet-56 on CIFAR-10, 92.8 -> 91.9 at 62.7 M MACs (50 %), 90.2 before tuning (the last: not verified);
    the search took one hour on a Titan Xp (as the LcP paper has it).

    Attributes:
        episodes: networks judged.
        warmup: of them, with actions drawn at random before the agent learns.
        noise: deviation of the actions around the agent's, after the warm-up.
        decay: of the noise, at each episode.
        memory: episodes remembered.
        reward: "accuracy", on the validation images where the data has some; or "loss", on the search's images.
    """

    episodes: int = 400
    warmup: int = 100
    noise: float = 0.5
    decay: float = 0.95
    memory: int = 100
    reward: str = "accuracy"

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.warmup < 0 or self.memory < 1 or not 0 < self.decay <= 1:
            raise ConfigError(f"{self}: episodes and memory from 1 on, warmup from 0, decay above 0 and at most 1")
        if self.reward not in ("accuracy", "loss"):
            raise ConfigError(f"reward={self.reward!r} is not known; choose 'accuracy' or 'loss'")

    def choose(self, task: Task) -> Choice:
        started = time.perf_counter()
        judge = _judge(task, self)
        walk = _Walk(task)
        agent = Agent(_FEATURES, self.memory * walk.layers, task.seed)
        records = judge.open_records(**self.settings())
        full = judge.evaluator.full_loss()
        records.start(task.scores, full)
        history: list[Record] = []
        agent_seconds = 0.0
        began = time.perf_counter() - (records.replayed[-1].seconds if records.replayed else 0.0)
        try:
            with Progress("amc", total=self.episodes, enabled=task.progress) as bar:
                for number in range(self.episodes):
                    clock = time.perf_counter()
                    noise = self.noise * self.decay ** (number - self.warmup)
                    old = records.replayed[number] if number < len(records.replayed) else None
                    episode, counts = walk.episode(agent, None if number < self.warmup else noise)
                    agent_seconds += time.perf_counter() - clock
                    kept = task.ranking.kept(counts)
                    actions = [step.action for step in episode]
                    if old is not None:
                        if not np.allclose(old.beta, actions):
                            raise SearchError(f"episode {number} of the records has other actions; name another folder")
                        judge.evaluator.remember(kept, old.loss)
                        record = old
                    else:
                        cached, loss = judge.evaluator.knows(kept), judge.evaluator.loss(kept)
                        record = Record(
                            iteration=number,
                            loss=loss,
                            difference=loss - full,
                            beta=actions,
                            counts=counts.tolist(),
                            macs=float(task.graph.cost.macs(counts)),
                            params=float(task.graph.cost.params(counts)),
                            best=min([loss - full, *(one.best for one in history[-1:])]),
                            cached=cached,
                            seconds=round(time.perf_counter() - began, 6),
                        )
                        records.append(record)
                    history.append(record)
                    clock = time.perf_counter()
                    if math.isfinite(record.loss):
                        agent.remember(episode, -record.loss)
                    if number >= self.warmup and agent.seen:
                        for _ in episode:
                            agent.update()
                    agent_seconds += time.perf_counter() - clock
                    bar.advance(best=f"{record.best:.4g}")
        finally:
            records.close()
        best = min(history, key=lambda record: record.loss)
        if not math.isfinite(best.loss):
            raise SearchError(f"none of {len(history)} networks has a finite loss: look at the data and the limit")
        work = judge.evaluator.work
        seconds = {
            "total": time.perf_counter() - started,
            "agent": agent_seconds,
            "preparing": work.preparing,
            "evaluating": work.evaluating,
        }
        meta = {"episodes": self.episodes, "difference": best.difference, "evaluations": work.evaluations}
        return Choice(task.ranking.kept(np.array(best.counts)), history, meta, seconds)


class _Walk:
    """The environment: one layer after another, each action bounded by what the later ones can make up for."""

    def __init__(self, task: Task) -> None:
        described = layers_of(task.graph)
        self.layers, self.sizes, self.floors = len(described), task.graph.cost.sizes, task.ranking.floors
        self.multiple, self.cost = task.multiple_of, task.graph.cost
        self.bounds = task.limits.bounds(task.graph.cost)
        task.ranking.select(task.limits)  # a limit that cannot be met is refused here
        self.full = float(self.cost.macs(self.sizes)) or 1.0
        self.costs = np.array([layer.cost for layer in described])
        fixed = np.array(
            [
                (number, layer.units, layer.inputs, layer.height, layer.width, layer.stride, layer.kernel, layer.cost)
                for number, layer in enumerate(described)
            ],
            dtype=np.float64,
        )
        low, high = fixed.min(0), fixed.max(0)
        self.fixed = (fixed - low) / np.where(high > low, high - low, 1.0)

    def episode(self, agent: Agent, noise: float | None) -> tuple[list[Transition], NDArray[np.int64]]:
        """Walk once; `noise` None for actions at random.

        Returns:
            The transitions with the executed actions, and how many units each group keeps.
        """
        counts = self.sizes.copy()
        states, actions = [], []
        action = 1.0
        for layer in range(self.layers):
            state = self._state(layer, counts, action)
            wanted = agent.explore() if noise is None else agent.act(state, noise)
            counts[layer] = self._width(layer, wanted, counts)
            action = float(counts[layer] / self.sizes[layer])
            states.append(state)
            actions.append(action)
        episode = [
            Transition(states[n], actions[n], states[min(n + 1, self.layers - 1)], n == self.layers - 1)
            for n in range(self.layers)
        ]
        return episode, counts

    def _state(self, layer: int, counts: NDArray[np.int64], action: float) -> NDArray[np.float64]:
        removed = 1 - float(self.cost.macs(counts)) / self.full
        rest = float(self.costs[layer + 1 :].sum() / self.costs.sum())
        return np.array([*self.fixed[layer], removed, rest, action])

    def _width(self, layer: int, wanted: float, counts: NDArray[np.int64]) -> int:
        """The allowed width nearest to the action, and no wider than the limits leave room for."""
        floor, size = int(self.floors[layer]), int(self.sizes[layer])
        widths = sorted({*range(floor, size, self.multiple), size})
        trial = counts.copy()
        trial[layer + 1 :] = self.floors[layer + 1 :]
        low, high = 0, len(widths)  # the narrowest always fits
        while high - low > 1:
            middle = (low + high) // 2
            trial[layer] = widths[middle]
            if all(bound.holds(trial) for bound in self.bounds):
                low = middle
            else:
                high = middle
        return min(widths[: low + 1], key=lambda width: abs(width - wanted * size))


def _judge(task: Task, method: Amc) -> Task:
    """The task with the evaluator that gives the reward: of networks as they are cut."""
    samples, how = task.need_labels(), replace(task.evaluation, after="cut")
    if method.reward == "loss" or not _has_classes(samples):
        return replace(task, evaluation=how)
    if task.dataset is not None and len(task.dataset.val):
        batches = task.dataset.batches("val", 128, limit=task.evaluation.images, seed=task.seed)
        samples = draw(batches, task.evaluation.images, task.seed)
    return replace(task, samples=samples, evaluation=replace(how, loss_fn=top1_error))


def _has_classes(samples: Any) -> bool:
    target = samples[0][1]
    return isinstance(target, torch.Tensor) and target.ndim == 0 and not target.is_floating_point()


def top1_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Share of images that are classified wrongly."""
    return (output.argmax(1) != target).float().mean()
