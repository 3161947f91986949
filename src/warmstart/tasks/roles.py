"""What the columns of a table are for, told by the user or read off the columns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.cells import cell_error, is_list, is_number, texts

_MULTI_SHARE = 0.1  # of the filled cells must hold the separator for a column to count as multi-valued
_NUMBER_SHARE = 0.5  # of the distinct texts being numbers makes the others look like mistakes

_LISTS = ("numeric", "categorical", "multi", "drop", "context")


@dataclass(frozen=True)
class Roles:
    """Columns by name. Columns named nowhere are features, their kind inferred.

    The lists may name columns of the rows and of both side tables. The item column is a feature too
    unless dropped; `group` changes no feature.
    """

    task: str
    target: str
    numeric: tuple[str, ...] | None = None
    categorical: tuple[str, ...] | None = None
    multi: tuple[str, ...] | None = None  # several values in a cell: a list, or text with separators
    item: str | None = None  # key of the item table
    time: str | None = None  # rows of a task are sorted by it, and the first are shown
    weight: str | None = None
    group: str | None = None  # of a task, for reports
    drop: tuple[str, ...] = ()
    context: tuple[str, ...] = ()  # of clicks: what is known of an impression before its answer
    first: bool = False  # also without a time column a task shows its first rows, not random ones

    def __post_init__(self) -> None:
        for name in _LISTS:
            value: Any = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        kept = [self.task, self.target, *(name for name in (self.time, self.weight) if name is not None)]
        single = [*kept, *([] if self.item is None else [self.item])]
        reserved = [self.task, self.target, *([] if self.weight is None else [self.weight])]
        listed = [*(self.numeric or ()), *(self.categorical or ()), *(self.multi or ())]
        for names in (
            [*single, *self.context],
            [*self.context, *self.drop],
            [*reserved, *listed],
            [*listed, *self.drop],
            [*kept, *dict.fromkeys(self.drop)],
        ):
            twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
            if twice is not None:
                raise InputError("one role for each column", f"two for '{twice}'", "name it once")

    def kind(self, name: str) -> str | None:
        """The kind the user gave a column, if any."""
        return next((kind for kind in ("numeric", "categorical", "multi") if name in (getattr(self, kind) or ())), None)

    def features(self, names: Iterable[str]) -> list[str]:
        """Those of the columns that are features."""
        no = {self.task, self.target, self.weight, *self.drop}
        return [name for name in names if name not in no and (name != self.time or self.kind(name))]

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Roles:
        """The inverse of `to_dict`; ValueError or TypeError when the content is damaged."""
        roles = cls(**content)
        named = asdict(roles)
        if not isinstance(named.pop("first"), bool):
            raise ValueError("bad role first")
        for name, value in named.items():
            wanted = tuple if name in _LISTS else str
            parts = value if isinstance(value, tuple) else (value,)
            given = isinstance(value, wanted) and all(isinstance(part, str) for part in parts)
            if not given and (value is not None or name in ("task", "target", "drop", "context")):
                raise ValueError(f"bad role {name}")
        return roles


def require(names: Iterable[str | None], have: Iterable[str], where: str) -> None:
    """Every name is a column; the error lists those that are not, with the nearest names."""
    have = list(have)
    absent = [name for name in dict.fromkeys(names) if name is not None and name not in have]
    if not absent:
        return
    folded = {name.casefold(): name for name in have}
    near = {name: difflib.get_close_matches(name.casefold(), folded, 1) for name in absent}
    guesses = [f"'{folded[match[0]]}' for '{name}'" for name, match in near.items() if match]
    listed = ", ".join(f"'{name}'" for name in have[:20]) + (f" and {len(have) - 20} more" if len(have) > 20 else "")
    remedy = f"did you mean {', '.join(guesses)}?" if guesses else "name one of them, or add the column"
    wanted = ", ".join(f"'{name}'" for name in absent)
    raise InputError(f"column{'s' * (len(absent) > 1)} {wanted} in the {where}", f"columns {listed}", remedy)


def feature_kinds(frame: pd.DataFrame, roles: Roles, separator: str, where: str) -> dict[str, str]:
    """Name -> numeric, categorical or multi, for every feature column of the frame."""
    kinds = {}
    for name in roles.features(frame.columns):
        inferred = "categorical" if name == roles.item else None
        kinds[name] = roles.kind(name) or inferred or _infer(frame[name], separator, where)
    return kinds


def _infer(column: pd.Series[Any], separator: str, where: str) -> str:
    written = pd.api.types.infer_dtype(column, skipna=True)
    if written in ("integer", "floating", "mixed-integer-float", "decimal"):
        return "numeric"
    if written in ("boolean", "categorical", "empty"):
        return "categorical"
    if written == "string":
        refuse_mixed(column, where)
        share = column.dropna().str.contains(separator, regex=False).mean()
        return "multi" if share >= _MULTI_SHARE else "categorical"
    if column.dtype == object and column.dropna().map(is_list).all():
        return "multi"
    if written in ("mixed", "mixed-integer"):
        refuse_mixed(column, where)
    remedy = f"turn '{column.name}' into numbers or text, or drop it"
    raise InputError(f"numbers, text or lists in column '{column.name}' of the {where}", f"{written} values", remedy)


def refuse_mixed(
    column: pd.Series[Any], where: str, remedy: str = "declare the column categorical, or clean it"
) -> None:
    """An error where numbers and text share a column, as after a typing mistake."""
    codes, names = texts(column, where)
    read = [is_number(name) for name in names]
    share = sum(read) / max(1, len(read))
    several = pd.api.types.infer_dtype(column, skipna=True) != "string"
    if 0 < share < 1 and (several or share >= _NUMBER_SHARE):
        row = next(row for row, code in enumerate(codes) if code >= 0 and not read[code])
        raise cell_error("numbers only, or text only,", column, row, where, remedy)
