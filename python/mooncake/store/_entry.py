"""What every call does first that is written in Python: as the native ones, it forgets why the one before failed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mooncake import _native

T = TypeVar("T", bound=type)

# The stub's texts: the one place that has them.
DOCS: dict[str, str] = _native._docs()


def entries(cls: T) -> T:
    """The class, each public method of which is a call of the store."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and callable(method):
            setattr(cls, name, _entry(method))
    return cls


def _entry(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(store: Any, *args: Any, **kwargs: Any) -> Any:
        _native._begin(store)
        return method(store, *args, **kwargs)

    call.__doc__ = DOCS.get(method.__name__)
    return call
