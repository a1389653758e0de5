"""Lazy imports and attributes, created at first access: not every process needs them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


class Lazy(Generic[T]):
    """An attribute that is created at first access, and kept.

    Unlike functools.cached_property, it does not use ``__dict__``, after whose use CPython reads
    all attributes of the instance slower.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Set the name of the attribute."""
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:
        """Create and store the value; called once for each instance."""
        made = self._make(instance)
        setattr(instance, self._name, made)
        return made


def names_of(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for *package*; *places*: module -> names separated by spaces."""
    modules = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
