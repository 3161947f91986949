"""The state of a preference method as tensors and JSON, and back, by the types that its named tuples declare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from warmstart.estimators.trained import under
from warmstart.tasks.features import Features


def pack_state(value: Any, path: str = "state") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arrays by their path, and everything else by its path."""
    if isinstance(value, np.ndarray | Tensor):
        return {path: torch.as_tensor(value)}, {}
    if isinstance(value, Features):
        return {}, {path: value.to_dict()}
    parts = value._asdict() if hasattr(value, "_fields") else value
    if not isinstance(parts, Mapping):
        return {}, {path: list(value) if isinstance(value, tuple) else value}
    tensors: dict[str, Tensor] = {}
    words: dict[str, Any] = {}
    for name, part in parts.items():
        some, more = pack_state(part, f"{path}/{name}")
        tensors |= some
        words |= more
    return tensors, words


def unpack_state(kind: Any, tensors: Mapping[str, Tensor], words: Mapping[str, Any], path: str = "state") -> Any:
    """The inverse for a declared type; KeyError, TypeError or ValueError when something is missing or other."""
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*(unpack_state(hints[name], tensors, words, f"{path}/{name}") for name in kind._fields))
    if path in tensors:
        return tensors[path].numpy() if get_origin(kind) is np.ndarray else tensors[path]
    if kind is Features:
        return Features.from_dict(words[path])
    if path not in words:
        return _nested(under(dict(tensors), path))
    value = words[path]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError(path)
        first, *rest = get_args(kind)
        kinds = [first] * len(value) if rest == [Ellipsis] else [first, *rest]
        return tuple(_checked(one, part) for one, part in zip(value, kinds, strict=True))
    return _checked(value, kind)


def _nested(named: dict[str, Tensor]) -> dict[str, Any]:
    """A tree of dicts by the parts of the names; KeyError when there is nothing."""
    if not named:
        raise KeyError("an empty tree")
    found: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split("/")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def _checked(value: Any, kind: Any) -> Any:
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} instead of {kind}")
    return value
