"""Pages from templates: whole ones, and the parts of one that change while somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from . import charts, series
from .texts import FILTERS, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_PART = "part_"


class Page(HTMLResponse):
    """HTML; what has no place in UTF-8 is escaped, though all text was made printable before."""

    def render(self, content: Any) -> bytes:
        """Return the bytes to send."""
        return str(content).encode("utf-8", "backslashreplace")


class Templates:
    """The templates of the package. Thread-safe."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("reliq.web", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals["charts"] = charts
        self._environment.globals["series"] = series
        # Not imported by the templates: what they import their parts would not have.
        macros = self._environment.get_template("macros.html").module
        self._environment.globals["ui"] = macros
        # All at once: a package that is upgraded under a running process changes nothing in it.
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    def whole(self, name: str, context: Mapping[str, Any]) -> str:
        """Return the page of a template."""
        return self._environment.get_template(name).render(context)

    def parts(self, name: str, context: Mapping[str, Any]) -> dict[str, str]:
        """Return the parts of a page that change: the blocks whose names begin with ``part_``."""
        template = self._environment.get_template(name)
        return {
            block.removeprefix(_PART): "".join(made(template.new_context(dict(context))))
            for block, made in template.blocks.items()
            if block.startswith(_PART)
        }
