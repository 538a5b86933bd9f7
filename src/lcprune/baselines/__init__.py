"""The methods that LcP is compared with, each on the same graph, cost, surgery and tuning.

```python
lcprune.prune(model, example_inputs, macs=0.5, method=lcprune.baselines.Amc(episodes=200), data=batches)
```
"""

from lcprune.baselines.amc import Amc
from lcprune.baselines.hand_schedule import L1Schedule
from lcprune.baselines.morphnet import MorphNet
from lcprune.baselines.reconstruction import ChannelLasso, ThiNet
from lcprune.baselines.single_filter import SingleFilter, SingleFilterFisher
from lcprune.baselines.slimming import Slimming
from lcprune.baselines.soft import Soft

__all__ = [
    "Amc",
    "ChannelLasso",
    "L1Schedule",
    "MorphNet",
    "SingleFilter",
    "SingleFilterFisher",
    "Slimming",
    "Soft",
    "ThiNet",
]
