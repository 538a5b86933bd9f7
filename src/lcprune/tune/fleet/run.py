"""The fleet in the training loop: one network with many sets of weights, and the members that they belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lcprune.copies import unwrap
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.tune.distributed import World
from lcprune.tune.feed import ResidentFeed
from lcprune.tune.fit import benchmarking
from lcprune.tune.fleet.layers import fleet_network
from lcprune.tune.fleet.stack import Layout
from lcprune.tune.loop import Loop
from lcprune.tune.step import Stepper
from lcprune.tune.training import Training

if TYPE_CHECKING:
    from lcprune.plan import Plan

Looks = Mapping[int, Callable[[list[nn.Module]], None]]

# How far the outputs of a cut and of the fleet may be apart, relative to the largest: rounding in TF32, through many
# layers. A network in which a removed channel still has a say is off by far more.
_TOLERANCE = 0.05
_COMPARED = 16  # images


class LostMembers(TuneError):
    """The loss of some members is not finite; the others are well, and saved where they have folders.

    Attributes:
        members: numbers of the lost ones.
    """

    def __init__(self, message: str, members: Sequence[int]) -> None:
        super().__init__(message)
        self.members = tuple(members)


class Fleet(Loop):
    """The loop that trains many cuts of one network at once, inside `training_settings`.

    Args:
        original: the network that was cut.
        plans: one per member; None for a network that is not cut.
        members: what is trained, and stacked as it is or as its checkpoint has it.
        looks: what to call after so many steps, with the members' networks.
    """

    def __init__(
        self,
        original: nn.Module,
        plans: Sequence[Plan | None],
        members: Sequence[Training],
        teacher: nn.Module | None,
        device: torch.device,
        looks: Looks | None = None,
    ) -> None:
        self.looks, self.proved = dict(looks or {}), False
        self.layouts = [Layout(original, plan, device) for plan in plans]
        self.network = fleet_network(unwrap(original), len(members)).to(device).train()
        recipes, dataset = [member.recipe for member in members], members[0].dataset
        recipe, seeds = recipes[0], [own.seed for own in recipes]
        for member in members:
            member.model.to(device).eval()
        if teacher is not None:
            layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
            teacher.to(device=device, memory_format=layout).eval()  # type: ignore[call-overload]
        assert isinstance(dataset, Dataset)
        feed = ResidentFeed(dataset, recipe.batch_size, recipe.augment, seeds, device)
        stepper = Stepper(self.network, feed, recipes, self._groups(members), teacher)
        super().__init__(members, feed, stepper, World(0, 1, device))
        for number, member in enumerate(members):
            kept = self.kept(number)
            member.load(kept)
            self._push(number, kept)
        places = [(member.place.epoch, member.place.step) for member in members]
        if len(set(places)) > 1:
            told = ", ".join(f"{number}: epoch {e}, step {s}" for number, (e, s) in enumerate(places))
            raise TuneError(
                f"the members are not at the same place ({told}): go on with those together that are, "
                "or with each one by `fit`"
            )
        self._compare()
        if device.type == "cuda" and recipe.cuda_graph and members[0].place.epoch < recipe.epochs:
            stepper.capture()

    def _groups(self, members: Sequence[Training]) -> list[tuple[list[nn.Parameter], list[float]]]:
        """The fleet's parameters by how they are trained, with each member's learning rate."""
        groups = [member.groups() for member in members]
        if any([names for names, _ in own] != [names for names, _ in groups[0]] for own in groups):
            raise TuneError(
                "the members do not train the same parameters: give all the same requires_grad, and a head_lr to all "
                "or none"
            )
        self.names = [name for names, _ in groups[0] for name in names]  # in the order of the momentum
        whole = dict(self.network.named_parameters())
        for name, parameter in whole.items():
            parameter.requires_grad_(name in self.names)
        alike = zip(*groups, strict=True)  # of each group, what every member has
        return [([whole[name] for name in own[0][0]], [rate for _, rate in own]) for own in alike]

    @torch.no_grad()
    def _push(self, number: int, kept: Mapping[str, Tensor]) -> None:
        """Put a member's weights, statistics and momentum into the fleet's; what the cut does not have is zero."""
        state, layout = self.network.state_dict(), self.layouts[number]
        for name, tensor in self.members[number].model.state_dict().items():
            state[name][number].copy_(layout.scatter(name, tensor))
        for place, (name, full) in enumerate(zip(self.names, self.stepper.momentum, strict=False)):
            full[number].copy_(layout.scatter(name, kept[f"momentum.{place}"]))

    @torch.no_grad()
    def pull(self) -> None:
        """Thousands of small copies, so not after every epoch."""
        state = self.network.state_dict()
        for number, (member, layout) in enumerate(zip(self.members, self.layouts, strict=True)):
            for name, tensor in member.model.state_dict().items():
                tensor.copy_(layout.gather(name, state[name][number]))

    def momentum(self, number: int) -> list[Tensor]:
        whole = zip(self.names, self.stepper.momentum, strict=False)
        return [self.layouts[number].gather(name, full[number]) for name, full in whole]

    @torch.no_grad()
    def _compare(self) -> None:
        """The members' outputs must be those of the cut networks: then a removed channel has no say in them."""
        count = len(self.members)
        dataset, size = self.members[0].dataset, min(_COMPARED, self.feed.batch)
        images, _ = next(iter(dataset.batches("train", size, device=self.world.device)))
        with benchmarking(False):  # cuDNN would try kernels for every width of every cut
            together = self.network.eval()(images.repeat(count, 1, 1, 1)).view(count, len(images), -1)
            outputs = [member.model(images) for member in self.members]
        self.network.train()
        for number, (ours, alone) in enumerate(zip(together, outputs, strict=True)):
            apart, largest = float((ours - alone).abs().max()), float(alone.abs().max())
            if math.isfinite(largest) and not apart <= _TOLERANCE * largest + 1e-4:
                raise TuneError(
                    f"member {number} computes something else at full width (outputs differ by {apart:.3g} of "
                    f"{largest:.3g}): in this network, zero weights are not absent ones. Tune each cut with `fit`."
                )

    def _prove(self) -> None:
        """What was removed must still be exactly zero; else training has woken it, and the cuts are no cuts."""
        for name, parameter in self.network.named_parameters():
            for number, layout in enumerate(self.layouts):
                if int(layout.rest(name, parameter.detach()[number]).count_nonzero()):
                    raise TuneError(
                        f"{name} of member {number} has gradients where the cut has no entries: in this "
                        "network, zero weights are not absent ones. Tune each cut with `fit`."
                    )
        self.proved = True

    def train(self, progress: bool, checkpoint_seconds: float, max_seconds: float | None) -> bool:
        place = self.members[0].place
        if not (place.epoch or place.step):
            self._look(0)
        done = super().train(progress, checkpoint_seconds, max_seconds)
        if done:
            self._prove()
            self.pull()
            with benchmarking(False):
                for member in self.members:
                    member.finish(self.world.device)
        return done

    def until(self) -> int:
        before = self.epoch * self.feed.steps
        return min([super().until(), *(at - before for at in self.looks if at - before > self.step)])

    def passed(self) -> None:
        if not self.proved:
            self._prove()
        self._look(self.epoch * self.feed.steps + self.step)

    def _look(self, step: int) -> None:
        if step in self.looks:
            self.pull()
            with benchmarking(False):
                self.looks[step]([member.model for member in self.members])

    def end_epoch(self, rate: float) -> None:
        with benchmarking(False):
            super().end_epoch(rate)

    def failure(self, lost: list[int], loss: float, where: str, rate: str) -> TuneError:
        self.save(leave_out=lost)  # the others have done all of these steps; what they have is worth keeping
        folders = {number: self.members[number].folder for number in lost}
        named = ", ".join(f"{number}" + (f" ({folder})" if folder else "") for number, folder in folders.items())
        rest = "" if all(member.folder is None for member in self.members) else "; the others are saved as they are now"
        message = (
            f"the loss of member {named} is not finite from {where} on {rate}{rest}. A lower lr or a warm-up may "
            "help, or `fit` for these alone."
        )
        return LostMembers(message, lost)
