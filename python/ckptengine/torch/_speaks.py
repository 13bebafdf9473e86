"""Tells whether an object's state protocol (state_dict() and its relatives) is torch's own code or somebody else's."""

from __future__ import annotations

from typing import Any


def is_overridden(item: Any, method: str, of_torch: tuple[str, ...]) -> bool:
    """Whether `item` has a method that is defined outside of the modules of torch that begin with `of_torch`."""
    found = getattr(item, "__dict__", {}).get(method) or getattr(type(item), method, None)
    return found is not None and not is_of(found, of_torch)


def is_of(function: Any, modules: tuple[str, ...]) -> bool:
    """Whether a function is defined in modules whose names begin like this. Looks into partial functions, and into
    torch's wrappers of hooks."""
    while (inner := getattr(function, "hook", None) or getattr(function, "func", None)) is not None:
        function = inner
    return (getattr(function, "__module__", None) or "").startswith(modules)
