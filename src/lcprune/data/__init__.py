"""Data sets: the embedded digits, CIFAR-10, folders of images.

```python
data = lcprune.data.load("cifar10:PATH", seed=0)
for images, labels in data.batches("train", 128, limit=3000, seed=0): ...
```
"""

from lcprune.data.augment import Augmentation
from lcprune.data.dataset import ArraySplit, Batches, Dataset, Split
from lcprune.data.decoded import DecodedSplit
from lcprune.data.files import FileSplit
from lcprune.data.registry import digits, from_arrays, hold_out, load

__all__ = [
    "ArraySplit",
    "Augmentation",
    "Batches",
    "Dataset",
    "DecodedSplit",
    "FileSplit",
    "Split",
    "digits",
    "from_arrays",
    "hold_out",
    "load",
]
