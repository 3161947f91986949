"""What a row of a table is made of: the one thing that readers of tables and networks must agree on."""

from __future__ import annotations

from typing import NamedTuple


class Columns(NamedTuple):
    """Counts and vocabulary sizes; a size counts the two special slots, missing (0) and unseen (1).

    >>> Columns(2, (5,)) + Columns(1, (), (7,))
    Columns(numeric=3, categorical=(5,), bag=(7,))
    """

    numeric: int = 0
    categorical: tuple[int, ...] = ()
    bag: tuple[int, ...] = ()

    def __add__(self, other: Columns) -> Columns:  # type: ignore[override]
        return Columns(self.numeric + other.numeric, self.categorical + other.categorical, self.bag + other.bag)
