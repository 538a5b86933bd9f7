"""Run the notebooks without Jupyter, and keep what their cells print.

python examples/run.py                  # all of them, in temporary folders
python examples/run.py frontier.ipynb
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def run(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, which run here, in one namespace."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number + 1}", "exec"), namespace)
        lines = said.getvalue().splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        cell["execution_count"] = number + 1
    return notebook


if __name__ == "__main__":
    for file in [HERE / name for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            made = run(file)
            os.chdir(HERE)
        file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(file.name)
