"""Data sets: the embedded digits, CIFAR-10, folders of images, and data of any task.

```python
data = lcprune.data.load("cifar10:PATH", seed=0)
for images, labels in data.batches("train", 128, limit=3000, seed=0): ...
```
"""

from lcprune.data.arrays import ArraySplit, Augmentation
from lcprune.data.dataset import Batches, Dataset, Split, from_arrays
from lcprune.data.decoded import DecodedSplit
from lcprune.data.files import FileSplit
from lcprune.data.own import OwnData, own
from lcprune.data.registry import AnyData, digits, hold_out, load

__all__ = [
    "AnyData",
    "ArraySplit",
    "Augmentation",
    "Batches",
    "Dataset",
    "DecodedSplit",
    "FileSplit",
    "OwnData",
    "Split",
    "digits",
    "from_arrays",
    "hold_out",
    "load",
    "own",
]
