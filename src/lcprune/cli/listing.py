"""`lcprune methods`: what can be named on the command line."""

from __future__ import annotations

import lcprune
from lcprune.cli import options as o
from lcprune.cli.show import print_json, print_table


def methods(json_: o.Json = False, debug: o.Debug = False) -> None:
    """List methods, metrics, recipes and networks.

    Examples:

      lcprune methods

      lcprune methods --json
    """
    from lcprune import models
    from lcprune.tune import recipes

    found = {
        "methods": {name: lcprune.methods.get(name).summary for name in lcprune.methods.names()},
        "metrics": {name: lcprune.metrics.get(name).summary for name in lcprune.metrics.names()},
    }
    if json_:
        print_json({**found, "recipes": list(recipes()), "models": list(models.names())})
        return
    for kind, entries in found.items():
        print_table(kind.capitalize(), ["name", "what it does"], [[n, why] for n, why in entries.items()])
        print()
    print("Recipes:  " + ", ".join(recipes()))
    print("Networks: " + ", ".join(models.names()) + ", torchvision:NAME, timm:NAME, file.py:factory")
