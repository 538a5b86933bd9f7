"""Stand-ins for every candidate of a search, from moments that are measured once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lcprune.batches import Batch
from lcprune.copies import copy_to_run
from lcprune.plan import Plan
from lcprune.repairs.moments import joined, measure
from lcprune.repairs.stand_ins import stand_in
from lcprune.repairs.wiring import Site, Survey


class QuickRepair:
    """Stand-ins for every cut of one network.

    Args:
        whole: the network before any cut; it is not changed.
        plan: cuts every group that a candidate may cut: what readers of these get is measured.
        batches: the images.

    Attributes:
        sites: layers that the plan touches and that can have stand-ins.
    """

    def __init__(self, whole: nn.Module, plan: Plan, batches: Sequence[Batch]) -> None:
        self.whole = copy_to_run(whole)
        self._survey = Survey(self.whole, pytree.tree_map(lambda leaf: leaf[:2], batches[0].inputs))
        self.sites = tuple(site for site in self._survey.wiring(plan).sites if site.cut)
        self._moments = measure(self.whole, self.sites, batches)

    def moments(self, site: Site) -> tuple[Tensor, Tensor]:
        """Mean and second moment of what a layer reads in the whole network."""
        return joined([self._moments[run] for run in site.runs])

    def __call__(self, small: nn.Module, plan: Plan) -> None:
        """Give a cut network its stand-ins, in place."""
        measured = {site.name: site.columns.taps for site in self.sites}
        sites = [
            site
            for site in self._survey.wiring(plan).sites
            if site.cut and measured.get(site.name) == site.columns.taps
        ]
        with torch.no_grad():
            stand_in(self.whole, small, sites, self._moments)
