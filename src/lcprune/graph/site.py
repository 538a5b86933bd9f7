"""Where in the network's code an operator runs.

What is taken by position (`x[:, :3]`) must be the same channels in a cut network. To compare, a place in the code
needs a name that is the same in every pass. Nothing in PyTorch gives one, so it is read from Python's own stack:
file, function and instruction of every frame between `LabelPass.forward` and the operator. Two places on one line
differ by their instruction; a loop passes the same place many times.
"""

from __future__ import annotations

import dis
import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

CodeSite = tuple[tuple[str, int, int], ...]
# Code of PyTorch's and ours: between the network's own code and the operator.
LIBRARIES = (str(Path(__file__).parents[1]) + os.sep, str(Path(torch.__file__).parent) + os.sep, "<")
# Python 3.11 makes a call by one of two neighbouring instructions, by the first once it has run often.
_PRECALL = dis.opmap.get("PRECALL")


def current_site(until: CodeType) -> CodeSite:
    """The frames that lead to the operator that is running, innermost first; what called `until` does not matter."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not until:
        code, instruction = frame.f_code, frame.f_lasti
        if _PRECALL is not None and code.co_code[instruction] == _PRECALL:
            instruction += 4
        found.append((code.co_filename, code.co_firstlineno, instruction))
        frame = frame.f_back
    return tuple(found)


def own_code(site: CodeSite) -> CodeSite:
    """Its frames in the network's own code, which are the same however a pass of ours came to ask."""
    return tuple(frame for frame in site if not frame[0].startswith(LIBRARIES))
