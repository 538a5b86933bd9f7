"""A processor that announces matrix instructions and does not have them: bf16 products on the CPU end the process.

With this folder on PYTHONPATH every Python process behaves so, children and workers too:

    PYTHONPATH=src:tests/lying_processor python -m pytest tests

As on the real ones, convolutions survive, and ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 makes all well.
"""

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import warnings

_KEPT = []  # what overrides PyTorch's operators lives as long as this


def _lie(torch):
    products = torch.library.Library("aten", "IMPL")
    _KEPT.append(products)

    def die_of_bf16(name, first):
        operator = getattr(torch.ops.aten, name)

        def product(*arguments, **options):
            tensor = arguments[first]
            if tensor.dtype == torch.bfloat16:
                os.kill(os.getpid(), signal.SIGILL)
            return operator.out(*arguments, **options, out=tensor.new_empty(0))

        products.impl(name, product, "CPU")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that operators are overridden is the point
        for name, first in (("mm", 0), ("addmm", 1), ("bmm", 0), ("baddbmm", 1)):
            die_of_bf16(name, first)


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds PyTorch as always, and changes it once it is there."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        self.loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        sys.meta_path.remove(self)
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _lie(module)


if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_FP16":
    sys.meta_path.insert(0, _AfterTorch())
