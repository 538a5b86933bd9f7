"""The paper's networks, and any other by name.

```python
model = lcprune.models.build("resnet56", num_classes=10, weights="resnet56.safetensors")
example = lcprune.models.example_input("resnet56")
```
"""

from lcprune.models.networks import PadShortcut
from lcprune.models.registry import build, example_input, input_shape, names
from lcprune.models.weights import from_centred, head_name, load_weights, read_state_dict

__all__ = [
    "PadShortcut",
    "build",
    "example_input",
    "from_centred",
    "head_name",
    "input_shape",
    "load_weights",
    "names",
    "read_state_dict",
]
