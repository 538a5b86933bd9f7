"""What a person looks at: figures, tables and one HTML page, made from run folders alone."""

from lcprune.report.figure import Figure
from lcprune.report.page import make_figures, write_report
from lcprune.report.records import Records, collect, summarise

__all__ = ["Figure", "Records", "collect", "make_figures", "summarise", "write_report"]
