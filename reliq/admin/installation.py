"""Which distribution this package comes from, and whether another one shares its folder.

On the package index the name ``reliq`` belongs to an HTML parser, whose wheel installs
``reliq/__init__.py`` as ours, ``kombu-reliq``, does: whichever comes last overwrites it,
and whichever is removed takes it away.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.inspection import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = __name__.partition(".")[0]
_REMEDY = (
    "pip uninstall reliq kombu-reliq, then pip install kombu-reliq; a program that needs the "
    "other one needs an environment of its own"
)


def examine() -> Iterator[Finding]:
    """Return from where this package is imported, or that another one is in its place."""
    others = sorted(
        {f"reliq {item.version}" for item in distributions(name="reliq") if _other(item)}
    )
    besides = f"{', '.join(others)} is another project, and is installed beside kombu-reliq"
    if not hasattr(sys.modules[_PACKAGE], "register"):
        what = "reliq/__init__.py is not that of kombu-reliq: import reliq is not ours"
        why = besides if others else "another package named reliq was installed or removed"
        yield Finding("installation", "error", f"{what} ({why})", _REMEDY)
    elif others:
        yield Finding(
            "installation",
            "warning",
            f"{besides}: both install reliq/__init__.py, and upgrading or removing either "
            "breaks the other",
            _REMEDY,
        )
    else:
        yield Finding("installation", "ok", f"imported from {Path(__file__).parents[1]}")


def _other(distribution: Distribution) -> bool:
    """Return whether it is not ours: a clone may still be installed under our former name."""
    return not any(point.group == "kombu.serializers" for point in distribution.entry_points)
