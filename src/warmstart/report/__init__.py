"""Tables, figures and the HTML page of what was measured."""

from warmstart.report.results import Results, called, load, make_results, merge, save, versions
from warmstart.report.rows import Interval, Row, differences, make_row, mean_interval
from warmstart.report.tables import Cell, Column, Line, Table, markdown, plain, save_csv, table

__all__ = [
    "Cell",
    "Column",
    "Interval",
    "Line",
    "Results",
    "Row",
    "Table",
    "called",
    "differences",
    "load",
    "make_results",
    "make_row",
    "markdown",
    "mean_interval",
    "merge",
    "plain",
    "save",
    "save_csv",
    "table",
    "versions",
]
