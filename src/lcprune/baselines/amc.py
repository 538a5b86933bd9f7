"""AMC: He et al., AMC: AutoML for model compression and acceleration on mobile devices, ECCV 2018."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from lcprune.baselines.ddpg import Agent, Transition
from lcprune.baselines.layers import describe_layers
from lcprune.batches import draw
from lcprune.errors import ConfigError
from lcprune.method import Method, methods
from lcprune.search import Sampler, Search, Space, run_search
from lcprune.search.space import FloatArray
from lcprune.select import Kept
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
        episodes = _Episodes(self, task, judge)
        evaluator, cost = judge.evaluator, task.graph.cost
        records = judge.open_records(**self.settings())
        full_loss = evaluator.full_loss()
        records.start(task.scores, full_loss)
        found = run_search(
            episodes, episodes.kept, evaluator, cost, full_loss, records, task.progress, signed=True, title="amc"
        )
        work = evaluator.work
        seconds = {
            "total": time.perf_counter() - started,
            "agent": found.planning,
            "preparing": work.preparing,
            "evaluating": work.evaluating,
        }
        meta = {"episodes": self.episodes, "difference": found.difference, "evaluations": work.evaluations}
        return Choice(found.kept, found.history, meta, seconds)


class _Episodes(Sampler):
    """An agent walks through the layers, again and again; a candidate is the shares that layers kept on one walk.

    Each action is bounded by what the later layers can make up for.
    """

    def __init__(self, method: Amc, task: Task, judge: Task) -> None:
        described = describe_layers(task.graph)
        task.ranking.select(task.limits)  # a limit that cannot be met is refused here
        super().__init__(Space(np.ones(len(described))), Search(pool=method.episodes, iterations=0), task.seed)
        self.start = []  # not even naive pruning
        self.method, self.ranking, self.cost, self.judge = method, task.ranking, task.graph.cost, judge
        self.bounds = task.limits.bounds(self.cost)
        self.full = float(self.cost.macs(self.cost.sizes)) or 1.0
        self.costs = np.array([layer.cost for layer in described])
        fixed = np.array([(number, *layer[:-1]) for number, layer in enumerate(described)], dtype=np.float64)
        low, high = fixed.min(0), fixed.max(0)
        self.fixed = (fixed - low) / np.where(high > low, high - low, 1.0)
        self.agent = Agent(_FEATURES, method.memory * len(described), task.seed)
        self.episode: list[Transition] = []

    def kept(self, shares: FloatArray) -> Kept:
        """The units that the network of an episode keeps."""
        return self.ranking.kept(np.rint(shares * self.cost.sizes))

    def _propose(self) -> FloatArray:
        after = self.asked - 1 - self.method.warmup  # episodes since the warm-up
        counts = self.cost.sizes.copy()
        states, actions = [], [1.0]
        for layer in range(len(counts)):
            states.append(self._state(layer, counts, actions[-1]))
            noise = self.method.noise * self.method.decay ** max(after, 0)
            wanted = self.agent.explore() if after < 0 else self.agent.act(states[-1], noise)
            counts[layer] = self._width(layer, wanted, counts)
            actions.append(float(counts[layer] / self.cost.sizes[layer]))
        ends = [False] * (len(counts) - 1) + [True]
        self.episode = list(map(Transition, states, actions[1:], [*states[1:], states[-1]], ends))
        return np.array(actions[1:])

    def _learn(self, beta: FloatArray, loss: float) -> None:
        if math.isfinite(loss):
            # The reward is no difference from the whole network's loss, which would be rounded.
            self.agent.remember(self.episode, -self.judge.evaluator.loss(self.kept(beta)))
        if self.told > self.method.warmup and self.agent.seen:
            for _ in self.episode:
                self.agent.update()

    def _state(self, layer: int, counts: NDArray[np.int64], action: float) -> NDArray[np.float64]:
        removed = 1 - float(self.cost.macs(counts)) / self.full
        rest = float(self.costs[layer + 1 :].sum() / self.costs.sum())
        return np.array([*self.fixed[layer], removed, rest, action])

    def _width(self, layer: int, wanted: float, counts: NDArray[np.int64]) -> int:
        """The allowed width nearest to the action, and no wider than the limits leave room for."""
        widths = self.ranking.widths[layer][::-1].tolist()  # rising
        trial = counts.copy()
        trial[layer + 1 :] = self.ranking.floors[layer + 1 :]
        low, high = 0, len(widths)  # the narrowest always fits
        while high - low > 1:
            middle = (low + high) // 2
            trial[layer] = widths[middle]
            low, high = (middle, high) if all(bound.holds(trial) for bound in self.bounds) else (low, middle)
        return int(min(widths[: low + 1], key=lambda width: abs(width - wanted * self.cost.sizes[layer])))


def _judge(task: Task, method: Amc) -> Task:
    """The task with the evaluator that gives the reward: of networks as they are cut."""
    samples, how = task.need_labels(), replace(task.evaluation, after="cut")
    target = samples[0][1]
    classes = isinstance(target, torch.Tensor) and target.ndim == 0 and not target.is_floating_point()
    if method.reward == "loss" or not classes:
        return replace(task, evaluation=how)
    if task.dataset is not None and len(task.dataset.val):
        batches = task.dataset.batches("val", 128, limit=task.evaluation.images, seed=task.seed)
        samples = draw(batches, task.evaluation.images, task.seed)
    return replace(task, samples=samples, evaluation=replace(how, loss_fn=top1_error))


def top1_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Share of images that are classified wrongly."""
    return (output.argmax(1) != target).float().mean()
