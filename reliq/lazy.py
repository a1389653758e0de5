"""Names of a package that are imported when they are asked for: not every process needs them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def names_of(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of *package*; *places*: module -> names in it, between spaces."""
    modules = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(module, package), name)
        setattr(sys.modules[package], name, found)
        return found

    return load
