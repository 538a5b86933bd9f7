"""Where work is done: in this process, or on the machines of a Ray cluster.

```python
lcprune.prune(model, example, macs=0.5, data=batches, run=Job(engine="ray"))         # candidates on every core or GPU
lcprune.prune(..., run=Job(engine=RayEngine(address="auto", workers=8)))             # of a cluster, on eight of them

with make_engine("ray") as engine:
    for index, result in engine.map(train_one, recipes, gpus=0.25):                  # any function over any items
        ...
```
"""

from lcprune.engine.base import Engine, Job, LocalEngine, Shared, make_engine
from lcprune.engine.cluster import RayEngine

__all__ = ["Engine", "Job", "LocalEngine", "RayEngine", "Shared", "make_engine"]
