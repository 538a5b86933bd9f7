"""A small DDPG agent: one action between 0 and 1 per state (Lillicrap et al. 2016, with AMC's settings)."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lcprune.search.space import FloatArray

_HIDDEN = 300  # units of each of two hidden layers, of the actor and of the critic
_ACTOR_RATE, _CRITIC_RATE = 1e-4, 1e-3  # of Adam
_BATCH = 64  # transitions per update
_TAU = 0.01  # how far the target networks move at each update


class Transition(NamedTuple):
    """One step of an episode."""

    state: FloatArray
    action: float  # that was executed
    after: FloatArray  # the state that followed
    last: bool  # whether the episode ended here


class Agent:
    """Learns which actions lead to high rewards. Small, so it lives on the CPU wherever the network is."""

    def __init__(self, features: int, memory: int, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = _network(features, nn.Sigmoid())
            self.critic = _network(features + 1, nn.Identity())
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), _ACTOR_RATE, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), _CRITIC_RATE, fused=True)
        self.rng = np.random.default_rng(seed)
        self.states, self.afters = np.zeros((memory, features)), np.zeros((memory, features))
        self.actions, self.rewards, self.ends = np.zeros(memory), np.zeros(memory), np.zeros(memory)
        self.seen = 0
        self.baseline: float | None = None  # moving average of rewards, subtracted to lower their variance

    def act(self, state: FloatArray, noise: float) -> float:
        """The actor's action with noise: a normal distribution around it, truncated to 0 to 1."""
        with torch.no_grad():
            mean = float(self.actor(_tensor(state[None])))
        while noise > 0:
            drawn = float(self.rng.normal(mean, noise))
            if 0 <= drawn <= 1:
                return drawn
        return mean

    def explore(self) -> float:
        """Any action, each as likely."""
        return float(self.rng.random())

    def remember(self, episode: list[Transition], reward: float) -> None:
        """Keep an episode; each of its steps gets the reward of the end."""
        for step in episode:
            place = self.seen % len(self.actions)
            self.states[place], self.afters[place] = step.state, step.after
            self.actions[place], self.rewards[place], self.ends[place] = step.action, reward, step.last
            self.seen += 1

    def update(self) -> None:
        """One step of critic and actor on remembered transitions."""
        chosen = self.rng.integers(min(self.seen, len(self.actions)), size=_BATCH)
        states, afters = _tensor(self.states[chosen]), _tensor(self.afters[chosen])
        actions, ends = _tensor(self.actions[chosen, None]), _tensor(self.ends[chosen, None])
        mean = float(self.rewards[chosen].mean())
        self.baseline = mean if self.baseline is None else 0.5 * (self.baseline + mean)
        rewards = _tensor(self.rewards[chosen, None] - self.baseline)
        with torch.no_grad():
            later = self.critic_target(torch.cat([afters, self.actor_target(afters)], 1))
            wanted = rewards + (1 - ends) * later
        self.critic_optimizer.zero_grad()
        nn.functional.mse_loss(self.critic(torch.cat([states, actions], 1)), wanted).backward()
        self.critic_optimizer.step()
        self.actor_optimizer.zero_grad()
        (-self.critic(torch.cat([states, self.actor(states)], 1)).mean()).backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            for live, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
                torch._foreach_lerp_(list(target.parameters()), list(live.parameters()), _TAU)


def _network(inputs: int, end: nn.Module) -> nn.Sequential:
    hidden = nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU()
    last = nn.Linear(_HIDDEN, 1)
    nn.init.uniform_(last.weight, -3e-3, 3e-3)  # first actions near the middle, first values near zero
    return nn.Sequential(*hidden, last, end)


def _tensor(array: FloatArray) -> Tensor:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))
