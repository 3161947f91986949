"""The one error a user is meant to see."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, told in one sentence: what was expected, what came, what to do.

    >>> raise InputError("a column 'user'", "columns a, b", "pass --task with one of them")
    Traceback (most recent call last):
        ...
    warmstart.core.errors.InputError: expected a column 'user', got columns a, b; pass --task with one of them
    """

    def __init__(self, expected: str, got: str, remedy: str) -> None:
        self.expected, self.got, self.remedy = expected, got, remedy
        super().__init__(f"expected {expected}, got {got}; {remedy}")


def check_names(given: Iterable[str], known: Iterable[str], what: str = "methods") -> None:
    """Refuse the first name that is not known."""
    known = list(known)
    listed = ", ".join(f"'{name}'" if "," in name else name for name in known)
    for name in given:
        if name not in known:
            raise InputError(f"{what} among {listed}", name, "name some of them")
