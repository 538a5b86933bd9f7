"""The paper's tables and figures, made again: cells (`cells.py`), what each does (`work.py`), many at once (`run.py`),
and what comes of them (`tables.py`)."""
