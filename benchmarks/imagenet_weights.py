"""Public ImageNet weights under the names of networks that lcprune knows, as safetensors.

    python benchmarks/imagenet_weights.py keras MODEL_JSON resnet50.safetensors --half
    python benchmarks/imagenet_weights.py lite efficientnet-lite0.pth tf_efficientnet_lite0.safetensors
    python benchmarks/imagenet_weights.py plain mobilenet_v2.pth mobilenet_v2.safetensors

`keras` reads a ResNet-50 of Keras that was written as a layers model for JavaScript: model.json, with its shards beside
it. It becomes `benchmarks/imagenet_weights.py:resnet50_v1`, with inputs as `imagenet:PATH,input=caffe` gives them.
`lite` reads an EfficientNet-Lite with the tensors in their official order. It becomes `timm:tf_efficientnet_liteN`,
after which the result is named, with inputs as `imagenet:PATH,input=lite` gives them (for Lite1 `,size=240` too).
`plain` only changes the format. `--half` stores convolutions and linear layers in float16.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from lcprune import models
from lcprune.models.weights import read_state_dict

_EPSILON = 1e-5  # of torchvision's batch norms


def resnet50_v1(num_classes: int = 1000) -> nn.Module:
    """ResNet-50 as first published: the first 1x1 convolution of a stage has the stride, not the 3x3 convolution."""
    model = models.build("torchvision:resnet50", num_classes)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model


def keras_resnet50(file: Path) -> dict[str, Tensor]:
    """The weights of a Keras ResNet-50 for `resnet50_v1`.

    Torchvision's convolutions have no bias and its batch norms another epsilon. Mean and variance take these up.
    """
    described = json.loads(file.read_text())
    layers = described["modelTopology"]["model_config"]["config"]["layers"]
    epsilon = {layer["name"]: layer["config"].get("epsilon") for layer in layers}
    stored = layers_model(file.parent, described)
    found: dict[str, Tensor] = {}

    def put(conv: str, norm: str, theirs: str, their_norm: str) -> None:
        found[f"{conv}.weight"] = stored[f"{theirs}/kernel"].permute(3, 2, 0, 1).contiguous()
        found[f"{norm}.weight"], found[f"{norm}.bias"] = stored[f"{their_norm}/gamma"], stored[f"{their_norm}/beta"]
        found[f"{norm}.running_mean"] = stored[f"{their_norm}/moving_mean"] - stored[f"{theirs}/bias"]
        found[f"{norm}.running_var"] = stored[f"{their_norm}/moving_variance"] + (epsilon[their_norm] - _EPSILON)

    put("conv1", "bn1", "conv1", "bn_conv1")
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            ours, theirs = f"layer{stage}.{block}", f"{stage + 1}{'abcdef'[block]}_branch"
            for number, letter in enumerate("abc", start=1):
                put(f"{ours}.conv{number}", f"{ours}.bn{number}", f"res{theirs}2{letter}", f"bn{theirs}2{letter}")
            if block == 0:
                put(f"{ours}.downsample.0", f"{ours}.downsample.1", f"res{theirs}1", f"bn{theirs}1")
    found["fc.weight"], found["fc.bias"] = stored["fc1000/kernel"].T.contiguous(), stored["fc1000/bias"]
    return found


def layers_model(folder: Path, described: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a layers model: of each group of weights the shards, end to end, hold them in order."""
    tensors = {}
    for group in described["weightsManifest"]:
        content = b"".join((folder / name).read_bytes() for name in group["paths"])
        place = 0
        for entry in group["weights"]:
            if entry["dtype"] != "float32" or "quantization" in entry:
                raise SystemExit(f"{entry['name']} is {entry['dtype']}, maybe quantised: expected plain float32")
            count = math.prod(entry["shape"])
            array = np.frombuffer(content, "<f4", count, place).reshape(entry["shape"])
            tensors[entry["name"]] = torch.from_numpy(array.copy())
            place += 4 * count
    return tensors


def efficientnet_lite(file: Path, name: str) -> dict[str, Tensor]:
    """The weights of an EfficientNet-Lite for timm's network called `name`: the same tensors in the same order."""
    own = models.build(f"timm:{name}").state_dict()
    stored = read_state_dict(file)
    if [value.shape for value in own.values()] != [value.shape for value in stored.values()]:
        raise SystemExit(f"{file} has other tensors than timm:{name}, or another order")
    return dict(zip(own, stored.values(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["keras", "lite", "plain"])
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path, help="for `lite` named after timm's network")
    parser.add_argument("--half", action="store_true")
    options = parser.parse_args()
    if options.kind == "keras":
        found = keras_resnet50(options.file)
    elif options.kind == "lite":
        found = efficientnet_lite(options.file, options.out.stem)
    else:
        found = read_state_dict(options.file)
    if options.half:  # vectors, and what batch norms divide by, keep their digits
        found = {name: value.half() if value.ndim > 1 else value for name, value in found.items()}
    save_file({name: value.contiguous() for name, value in found.items()}, options.out)
    print(f"{options.out}: {len(found)} tensors, {options.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
