"""Training and fine-tuning.

```python
result = lcprune.tune.fit(model, data, lcprune.tune.recipe("finetune", epochs=30), run_dir="runs/tune")
loss, accuracy = lcprune.tune.evaluate(model, data, "test")
```
"""

from lcprune.tune.evaluate import SplitResult, evaluate, recalibrate
from lcprune.tune.fit import FitResult, fit
from lcprune.tune.fleet.fit import fit_fleet
from lcprune.tune.fleet.run import LostMembers
from lcprune.tune.recipe import Recipe, recipe, recipes

__all__ = [
    "FitResult",
    "LostMembers",
    "Recipe",
    "SplitResult",
    "evaluate",
    "fit",
    "fit_fleet",
    "recalibrate",
    "recipe",
    "recipes",
]
