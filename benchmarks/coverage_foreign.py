"""Networks of libraries that lcprune does not need, for coverage_one.py: what is installed is measured.

One function per library: the name after the colon gives a network with random weights and its input shape.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor, nn

from lcprune.vision import import_timm

Built = tuple[nn.Module, tuple[int, ...]]

# What differs from the default configuration of a model type.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "resnet": {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]},
    "regnet": {"depths": [1, 2, 4, 1], "hidden_sizes": [32, 64, 160, 384], "groups_width": 16},
    "bit": {"depths": [2, 2, 2, 2], "hidden_sizes": [128, 256, 512, 1024]},
    "efficientnet": {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224},
    "swin": {"image_size": 64, "patch_size": 2, "window_size": 4, "embed_dim": 48, "depths": [2, 2, 2, 2]},
    "vit": {"image_size": 64, "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "focalnet": {"embed_dim": 48, "depths": [2, 2, 2, 2]},
}

# The class, its options, the input shape.
MONAI: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "UNet2d": ("UNet", {"spatial_dims": 2, "channels": (16, 32, 64, 128), "num_res_units": 2}, (1, 64, 64)),
    "UNet3d": ("UNet", {"spatial_dims": 3, "channels": (16, 32, 64), "num_res_units": 2}, (1, 32, 32, 32)),
    "BasicUNet3d": ("BasicUNet", {"spatial_dims": 3}, (1, 32, 32, 32)),
    "AttentionUnet2d": ("AttentionUnet", {"spatial_dims": 2, "channels": (16, 32, 64)}, (1, 64, 64)),
    "DynUNet2d": ("DynUNet", {"spatial_dims": 2}, (1, 64, 64)),
    "DynUNet3d": ("DynUNet", {"spatial_dims": 3, "res_block": True}, (1, 32, 32, 32)),
    "SegResNet3d": ("SegResNet", {"spatial_dims": 3, "init_filters": 16}, (1, 32, 32, 32)),
    "VNet3d": ("VNet", {"spatial_dims": 3}, (1, 32, 32, 32)),
    "DenseNet121-2d": ("DenseNet121", {"spatial_dims": 2}, (1, 64, 64)),
    "DenseNet121-3d": ("DenseNet121", {"spatial_dims": 3}, (1, 32, 32, 32)),
}
_DYNAMIC = {"kernel_size": [3, 3, 3, 3], "strides": [1, 2, 2, 2], "upsample_kernel_size": [2, 2, 2]}
_BLOCKS = {"block_out_channels": (32, 64), "norm_num_groups": 8}
DIFFUSERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "AutoencoderKL": (
        {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        (3, 32, 32),
    ),
    "AutoencoderTiny": ({}, (3, 32, 32)),
    "UNet2DModel": (
        {
            **_BLOCKS,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        (3, 32, 32),
    ),
}
_RANDOM = {"pretrained": False}
KORNIA: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "HardNet": ("feature.HardNet", _RANDOM, (1, 32, 32)),
    "HardNet8": ("feature.HardNet8", _RANDOM, (1, 32, 32)),
    "HyNet": ("feature.HyNet", _RANDOM, (1, 32, 32)),
    "SOSNet": ("feature.SOSNet", _RANDOM, (1, 32, 32)),
    "TFeat": ("feature.TFeat", _RANDOM, (1, 32, 32)),
    "XFeat": ("feature.XFeatModel", {}, (1, 64, 64)),
    "DexiNed": ("models.dexined.DexiNed", _RANDOM, (3, 64, 64)),
    "RRDBNet": ("models.RRDBNet", {"num_in_ch": 3, "num_out_ch": 3, "num_feat": 32, "num_block": 3}, (3, 32, 32)),
    # Whole, these two return as many key points as they find.
    "DISK-unet": ("feature.DISK", {}, (3, 64, 64)),
    "LoFTR-backbone": ("feature.LoFTR", {"pretrained": None}, (1, 64, 64)),
}


def distribution(name: str) -> str:
    """The library that a network comes from, as pip calls it."""
    source = name.partition(":")[0]
    return "segmentation-models-pytorch" if source == "smp" else source


def library(name: str) -> str | None:
    """The library that a network comes from and its version, or None where it is not installed."""
    try:
        return f"{distribution(name)} {version(distribution(name))}"
    except PackageNotFoundError:
        return None


class AtStep(nn.Module):
    """A diffusion network at one step of time."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        return self.network(x, x.new_full((len(x),), 10))


def build(source: str, model: str, kind: str) -> Built:
    """The network `source:model`."""
    import_timm()  # with torchvision, which some of them import: here it loads without its operators too
    os.environ |= {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true"}
    return globals()[f"_{source}"](model, kind)


def _ultralytics(model: str, kind: str) -> Built:
    os.environ["YOLO_CONFIG_DIR"] = tempfile.gettempdir()
    tasks = importlib.import_module("ultralytics.nn.tasks")
    kinds = {"seg": tasks.SegmentationModel, "pose": tasks.PoseModel, "cls": tasks.ClassificationModel}
    network = kinds.get(model.rpartition("-")[2], tasks.DetectionModel)(f"{model}.yaml", verbose=False)
    return network.requires_grad_(), (3, 128, 128)


def _smp(model: str, kind: str) -> Built:
    smp = importlib.import_module("segmentation_models_pytorch")
    decoder, _, encoder = model.partition("/")
    return getattr(smp, decoder)(encoder, encoder_weights=None, classes=4), (3, 128, 128)


def _transformers(model: str, kind: str) -> Built:
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(model, **TRANSFORMERS.get(model, {}))
    task = "SemanticSegmentation" if kind == "segmentation" else "ImageClassification"
    network = getattr(transformers, f"AutoModelFor{task}").from_config(config)
    size = getattr(config, "image_size", 224)
    return network, (config.num_channels, size, size)


def _monai(model: str, kind: str) -> Built:
    name, options, shape = MONAI[model]
    options = {"in_channels": 1, "out_channels": 3, **options}
    if "channels" in options:
        options["strides"] = (2,) * (len(options["channels"]) - 1)
    options |= _DYNAMIC if name == "DynUNet" else {}
    return getattr(importlib.import_module("monai.networks.nets"), name)(**options), shape


def _pytorchcv(model: str, kind: str) -> Built:
    options = {"in_size": (128, 128)} if kind == "segmentation" else {}
    network = importlib.import_module("pytorchcv.model_provider").get_model(model, pretrained=False, **options)
    return network, (3, *network.in_size)


def _diffusers(model: str, kind: str) -> Built:
    options, shape = DIFFUSERS[model]
    network = getattr(importlib.import_module("diffusers"), model)(**options)
    return AtStep(network) if model.startswith("UNet") else network, shape


def _kornia(model: str, kind: str) -> Built:
    path, options, shape = KORNIA[model]
    module, _, name = f"kornia.{path}".rpartition(".")
    network = getattr(importlib.import_module(module), name)(**options)
    part = model.partition("-")[2]
    return getattr(network, part) if part else network, shape
