"""The fleet in the training loop: one network with many sets of weights, and the members that they belong to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lcprune.copies import unwrap
from lcprune.data import Dataset
from lcprune.errors import TuneError
from lcprune.tune.checkpoint import Place
from lcprune.tune.distributed import World
from lcprune.tune.fleet.layers import fleet_network
from lcprune.tune.fleet.member import FleetMember
from lcprune.tune.fleet.step import FleetFeed, FleetStepper
from lcprune.tune.loop import Loop

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
    """The state of one call of `fit_fleet`.

    Args:
        looks: what to call after so many steps, with the members' networks.
    """

    def __init__(
        self,
        original: nn.Module,
        members: Sequence[FleetMember],
        teacher: nn.Module | None,
        world: World,
        looks: Looks,
    ) -> None:
        self.original, self.members, self.world = original, list(members), world
        # Of what the loop reads in it, nothing differs between members.
        self.recipe = members[0].recipe
        self.looks = dict(looks)
        self.teacher = teacher if self.recipe.distill > 0 else None
        self.teacher_mode = teacher is not None and teacher.training
        self.place = Place()
        self.proved = False

    # -- set-up ---------------------------------------------------------------------------------------------

    def prepare(self, resume: bool) -> None:
        """Stack the members' weights, or what their checkpoints hold, and capture the step."""
        recipe, device = self.recipe, self.world.device
        self.network = fleet_network(unwrap(self.original), len(self.members)).to(device)
        dataset = self.members[0].dataset
        assert isinstance(dataset, Dataset)
        seeds = [member.recipe.seed for member in self.members]
        self.feed: FleetFeed = FleetFeed(dataset, recipe.batch_size, recipe.augment, seeds, device)
        for member in self.members:
            member.join(self.feed, resume)
        self._take_place()
        if self.teacher is not None:
            layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
            self.teacher.to(device=device, memory_format=layout).eval()  # type: ignore[call-overload]
        own = dict(self.network.named_parameters())
        parts = [names for names, _ in self.members[0].trained]
        if any([names for names, _ in member.trained] != parts for member in self.members):
            raise TuneError(
                "the members do not train the same parameters: give all the same requires_grad, and a head_lr to all "
                "or none"
            )
        names = {name for part in parts for name in part}
        for name, parameter in own.items():
            parameter.requires_grad_(name in names)
        groups = [
            ([own[name] for name in part], [member.trained[number][1] for member in self.members])
            for number, part in enumerate(parts)
        ]
        recipes = [member.recipe for member in self.members]
        state = self.network.state_dict()
        for member in self.members:
            member.push_weights(state)
        self._compare()
        self.network.train()
        capture = device.type == "cuda" and recipe.cuda_graph and self.place.epoch < recipe.epochs
        self.stepper: FleetStepper = FleetStepper(self.network, self.feed, recipes, groups, self.teacher, capture)
        for member in self.members:
            member.push_momentum(self._momentum(), self.stepper)

    def _take_place(self) -> None:
        places = [(member.place.epoch, member.place.step) for member in self.members]
        if len(set(places)) > 1:
            told = ", ".join(f"{number}: epoch {e}, step {s}" for number, (e, s) in enumerate(places))
            raise TuneError(
                f"the members are not at the same place ({told}): go on with those together that are, "
                "or with each one by `fit`"
            )
        self.place.epoch, self.place.step = places[0]

    def _momentum(self) -> dict[str, Tensor]:
        return dict(zip(self.members[0].trained_names, self.stepper.momentum, strict=False))

    @torch.no_grad()
    def _compare(self) -> None:
        """The members' outputs must be those of the cut networks: then a removed channel has no say in them."""
        count = len(self.members)
        dataset, size = self.members[0].dataset, min(_COMPARED, self.feed.batch)
        images, _ = next(iter(dataset.batches("train", size, device=self.world.device)))
        with _no_benchmark():
            together = self.network.eval()(images.repeat(count, 1, 1, 1)).view(count, len(images), -1)
            outputs = [member.model(images) for member in self.members]
        for member, ours, alone in zip(self.members, together, outputs, strict=True):
            apart, largest = float((ours - alone).abs().max()), float(alone.abs().max())
            if math.isfinite(largest) and not apart <= _TOLERANCE * largest + 1e-4:
                raise TuneError(
                    f"member {member.number} computes something else at full width (outputs differ by {apart:.3g} of "
                    f"{largest:.3g}): in this network, zero weights are not absent ones. Tune each cut with `fit`."
                )

    # -- between steps --------------------------------------------------------------------------------------

    def _until(self, step: int) -> int:
        before = self.place.epoch * self.feed.steps
        due = [at - before for at in self.looks if at - before > step]
        return min(super()._until(step), *due) if due else super()._until(step)

    def _passed(self) -> None:
        if not self.proved:
            self._prove()
        look = self.looks.get(self.place.epoch * self.feed.steps + self.place.step)
        if look is not None:
            self._pull()
            with _no_benchmark():
                look([member.model for member in self.members])

    def _prove(self) -> None:
        """What was removed must still be exactly zero; else training has woken it, and the cuts are no cuts."""
        for name, parameter in self.network.named_parameters():
            for member in self.members:
                if int(member.layout.rest(name, parameter.detach()[member.number]).count_nonzero()):
                    raise TuneError(
                        f"{name} of member {member.number} has gradients where the cut has no entries: in this "
                        "network, zero weights are not absent ones. Tune each cut with `fit`."
                    )
        self.proved = True

    def open(self) -> None:
        for member in self.members:
            member.started, member.before = 0.0, member.place.seconds
            member.open()
        if 0 in self.looks and not (self.place.epoch or self.place.step):
            with _no_benchmark():
                self.looks[0]([member.model for member in self.members])

    def _pull(self) -> None:
        """Give every member its weights, its momentum and the place."""
        state, momentum = self.network.state_dict(), self._momentum()
        for member in self.members:
            member.pull(state, momentum)
            member.pull_epoch(self.stepper)
            member.move(self.place)

    def _check(self, losses: Tensor, first: int) -> None:
        good = torch.isfinite(losses)
        if bool(good.all()):
            return
        lost = (~good.all(0)).nonzero().view(-1).tolist()
        step = int((~good.all(1)).nonzero()[0])
        # The others have done all of these steps; what they have is worth keeping.
        self.place.step = first + len(losses)
        self.place.seconds = time.monotonic() - self.started
        self.save(leave_out=lost)
        recipe = self.members[lost[0]].recipe
        factor = recipe.factors(self.place.epoch, self.feed.steps)[first + step]
        folders = {number: self.members[number].folder for number in lost}
        named = ", ".join(f"{number}" + (f" ({folder})" if folder else "") for number, folder in folders.items())
        rest = "" if all(member.folder is None for member in self.members) else "; the others are saved as they are now"
        message = (
            f"the loss of member {named} is not finite from epoch {self.place.epoch + 1}, step {first + step + 1} of "
            f"{self.feed.steps} on (learning rate {recipe.lr * factor:g}){rest}. A lower lr or a warm-up may "
            "help, or `fit` for these alone."
        )
        raise LostMembers(message, lost)

    def end_epoch(self, checkpoint_seconds: float) -> None:
        took, recipe = time.monotonic() - self.epoch_start, self.recipe
        due = time.monotonic() - self.saved_at >= checkpoint_seconds
        if due or (self.place.epoch + 1) % recipe.eval_every == 0 or self.place.epoch + 1 == recipe.epochs:
            self._pull()
        with _no_benchmark():
            for member in self.members:
                member.pull_epoch(self.stepper)
                member.move(self.place)
                # As if each had waited for no other one's look. One decision on checkpoints holds for all.
                member.epoch_start, member.epoch_first = time.monotonic() - took, self.epoch_first
                member.started = time.monotonic() - self.place.seconds
                member.saved_at = self.saved_at
                member.end_epoch(0.0 if due else math.inf)
        if due:
            self.saved_at = time.monotonic()
        self.place.epoch, self.place.step = self.place.epoch + 1, 0

    def save(self, leave_out: Sequence[int] = ()) -> None:
        self._pull()
        for member in self.members:
            if member.number not in leave_out:
                member.save()
        self.saved_at = time.monotonic()

    # -- the end --------------------------------------------------------------------------------------------

    def finish(self) -> None:
        self._prove()
        self._pull()
        with _no_benchmark():
            for member in self.members:
                member.finish()

    def _shown(self, rate: float) -> dict[str, str]:
        looked = [member.summary().get("val_accuracy") for member in self.members]
        found = [accuracy for accuracy in looked if accuracy is not None]
        shown = {"accuracy": f"{sum(found) / len(found):.2%}"} if found else {}
        return {**shown, "images/s": f"{rate * len(self.members):,.0f}"}

    def _where(self) -> str:
        folders = [str(member.folder) for member in self.members if member.folder is not None]
        return f"; saved in {', '.join(folders)}" if folders else ""

    def restore(self) -> None:
        """Give the networks their modes back, and the teacher its layout."""
        for member in self.members:
            member.leave()
        if self.teacher is not None:
            self.teacher.to(memory_format=torch.contiguous_format).train(self.teacher_mode)  # type: ignore[call-overload]


@contextmanager
def _no_benchmark() -> Iterator[None]:
    """While the cuts run by themselves: cuDNN would try kernels for every width of every one of them."""
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
