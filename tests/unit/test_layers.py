"""Imports point down, and only the modules at a border import a foreign library.

The table below is the order of docs/design.md, lowest layer first. Each folder of reliq, and each
file beside the folders, is in one layer. A folder that is missing from the table fails the test, so
that its author chooses a layer. Folders of one layer do not import each other. Files of batches
that lower layers need are listed by themselves.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"

LAYERS = (
    {
        "reliq._version",
        "reliq.forks",
        "reliq.hosts",
        "reliq.interrupts",
        "reliq.lazy",
        "reliq.printable",
        "reliq.units",
    },
    {"reliq.errors", "reliq.loops"},
    {"reliq.kombu_options", "reliq.login"},
    {"reliq.options"},
    {"reliq.message", "reliq.batches.jobs"},
    {"reliq.embedded", "reliq.values", "reliq.batches.info"},
    {"reliq.lua"},
    {"reliq.client"},
    {"reliq.doctor"},
    {"reliq.store", "reliq.routing", "reliq.signals", "reliq.spool"},
    {
        "reliq.transfer",
        "reliq.batches.callbacks",
        "reliq.batches.entries",
        "reliq.batches.job_reports",
    },
    {"reliq.failover", "reliq.batches.lost_jobs"},
    {"reliq.consumer"},
    {"reliq.transports"},
    {"reliq.integrations"},
    {"reliq.admin", "reliq.tasks", "reliq.migration"},
    {"reliq.batches", "reliq.metrics", "reliq.testing", "reliq.web"},
    {"reliq", "reliq.plugin", "reliq.cli"},
)

# (module, name): what a lower module imports for its type: the store, and a script's command.
TYPES_ABOVE = {
    ("reliq.values.protocol", "reliq.store.store.RedisStore"),
    ("reliq.lua.scripts", "reliq.client.stream.Command"),
}

# Groups of files that import each other for types only, without an effect at run time. The list
# only becomes shorter.
CIRCLES: tuple[set[str], ...] = ()

# The modules that may import a foreign library directly. All others go through them.
BORDERS = {
    "redis": ("reliq.client",),
    "hiredis": ("reliq.client",),
    "sqlite3": ("reliq.spool",),
    "kombu": (
        "reliq.transports",
        "reliq.integrations",
        "reliq.migration",
        "reliq.plugin",
        "reliq.cli",
    ),
    "celery": ("reliq.integrations", "reliq.cli"),
    "billiard": ("reliq.integrations", "reliq.cli"),
    "click": ("reliq.cli",),
    "rich": ("reliq.cli",),
    "blinker": ("reliq.signals",),
    "prometheus_client": ("reliq.metrics", "reliq.cli.exporter"),
    "starlette": ("reliq.web",),
    "jinja2": ("reliq.web",),
    "markupsafe": ("reliq.web",),
    "anyio": ("reliq.web",),
    "uvicorn": ("reliq.cli.web_server",),
}

# Code that does not depend on one scheme goes through this module, which knows all schemes.
ENGINES_BY_URL = "reliq.store.urls"

# The modules that name an engine: one transport per scheme, the reader of Kombu's URLs, and the
# engines.
ENGINES = ("reliq.client", "reliq.doctor", "reliq.lua", "reliq.store")
ENGINE_CHOOSERS = (
    *ENGINES,
    "reliq.transports.redis",
    "reliq.migration.kombu_url",
    "reliq.admin.permissions",  # the rules are Redis's own
)

# (module, imported name): the reason why this import is inside a function.
LATE_IMPORTS = {
    ("reliq.embedded.keeper", "ctypes"): "only the process that becomes the server needs it",
    (
        "reliq.transports",
        "kombu.transport.TRANSPORT_ALIASES",
    ): "the entry point runs in the middle of Kombu's own import",
    (
        "reliq.transports",
        "kombu.connection.failover_strategies",
    ): "the entry point runs in the middle of Kombu's own import",
    (
        "reliq.lazy",
        "module",
    ): "a package's table of names, which not every process needs",
    (
        "reliq.cli.commands",
        "module",
    ): "of twenty commands one is run",
    ("reliq.cli.console", ".tables"): "what draws is loaded by commands that draw",
    (
        "reliq.integrations.task_calls",
        "f'celery.{module}'",
    ): "Celery is not loaded before the application did",
    ("reliq.cli.exporter", "prometheus_client.CollectorRegistry"): "it is an extra",
    ("reliq.cli.exporter", "prometheus_client.start_http_server"): "it is an extra",
    ("reliq.cli.exporter", "reliq.metrics.Collector"): "what it imports is an extra",
    ("reliq.cli.web", "reliq.web.settings.hashed"): "what its package imports is an extra",
    ("reliq.cli.web", "reliq.cli.web_server.serve"): "what it imports is an extra",
}


class Import(NamedTuple):
    """One import statement: its target and its position."""

    target: str
    line: int
    late: bool
    for_types: bool


def _absolute(node: ast.ImportFrom, module: str, *, package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*parts, node.module] if node.module else parts)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


class _Walk(ast.NodeVisitor):
    """Collects imports, with the functions and branches around them."""

    def __init__(self, module: str, *, package: bool) -> None:
        self.module, self.package = module, package
        self.late = self.for_types = False
        self.found: list[Import] = []

    def add(self, target: str, node: ast.expr | ast.stmt) -> None:
        self.found.append(Import(target, node.lineno, self.late, self.for_types))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = _absolute(node, self.module, package=self.package)
        for alias in node.names:
            self.add(f"{base}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).rpartition(".")[2] in {"import_module", "__import__"}:
            name = node.args[0]
            self.add(str(getattr(name, "value", "") or ast.unparse(name)), node)
        self.generic_visit(node)

    def _inside(self, node: ast.AST) -> None:
        outer, self.late = self.late, True
        self.generic_visit(node)
        self.late = outer

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._inside(node)
        else:
            super().visit(node)

    def visit_If(self, node: ast.If) -> None:
        outer = self.for_types
        self.for_types = outer or _is_type_checking(node.test)
        for child in node.body:
            self.visit(child)
        self.for_types = outer
        for child in node.orelse:
            self.visit(child)


def imports_of(source: str, module: str, *, package: bool = False) -> list[Import]:
    """Return every import of *source*, including those inside functions and branches."""
    walk = _Walk(module, package=package)
    walk.visit(ast.parse(source))
    return walk.found


def modules() -> dict[str, tuple[Path, bool]]:
    """Return dotted name -> (file, is a package) of all modules of reliq."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if package else parts)] = (path, package)
    return found


def _within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def room_of(module: str) -> str | None:
    """Return the folder of *module*, or the file beside the folders; None without a layer."""
    name = module
    while not any(name in names for names in LAYERS):
        name = name.rpartition(".")[0]
        if name in {"", "reliq"}:
            return None
    return name


def layer_of(module: str) -> int | None:
    """Return the layer of *module*; None without a layer."""
    room = room_of(module)
    return next((rank for rank, names in enumerate(LAYERS) if room in names), None)


def resolve(target: str, known: frozenset[str]) -> str:
    """Return the module of *target*, which is a module or a name in one."""
    while target not in known and "." in target:
        target = target.rpartition(".")[0]
    return target


def complaints(
    module: str, source: str, known: frozenset[str], *, package: bool = False
) -> list[str]:
    """Return one line for each import of *source* that breaks a rule."""
    own = layer_of(module)
    found = [] if own is not None else [f"{module}: is in no layer"]
    for item in imports_of(source, module, package=package):
        where = f"{module}:{item.line}: imports {item.target}"
        top, meant = item.target.split(".")[0], resolve(item.target, known)
        rank = layer_of(meant) if top == "reliq" else None
        if own is not None and rank is not None:
            if rank > own and not (item.for_types and (module, item.target) in TYPES_ABOVE):
                found.append(f"{where}, upward")
            elif rank == own and room_of(meant) != room_of(module):
                found.append(f"{where}, which stands beside it")
        if item.for_types:
            continue
        if item.late and (module, item.target) not in LATE_IMPORTS:
            found.append(f"{where} inside a function")
        if top in BORDERS and not _within(module, BORDERS[top]):
            found.append(f"{where}, which only {', '.join(BORDERS[top])} may")
        if (
            _within(meant, ENGINES)
            and meant != ENGINES_BY_URL
            and not _within(module, ENGINE_CHOOSERS)
        ):
            found.append(f"{where}: only a scheme's own module chooses an engine")
    return found


KNOWN = modules()


@pytest.mark.parametrize("module", KNOWN)
def test_imports_point_down(module):
    """No module imports upward (even for types), late, or a library outside its border."""
    path, package = KNOWN[module]
    expected = []
    assert expected == complaints(
        module, path.read_text("utf-8"), frozenset(KNOWN), package=package
    )


def graph(*, types: bool) -> dict[str, set[str]]:
    """Return module -> imported modules; with *types*, also those for annotations.

    A package does not use the names that it lists and loads on demand (lazy.py).
    """
    return {
        module: {
            meant
            for item in imports_of(path.read_text("utf-8"), module, package=package)
            if ((types and not package) or not item.for_types) and item.target.startswith("reliq")
            if (meant := resolve(item.target, frozenset(KNOWN))) != module
        }
        for module, (path, package) in KNOWN.items()
    }


def test_the_page_stands_on_the_inspector():
    """The page depends on the inspector, not on an engine or the form of stored messages."""
    allowed = (
        "reliq.admin",
        "reliq.errors",
        "reliq.forks",
        "reliq.hosts",
        "reliq.interrupts",
        "reliq.printable",
        "reliq.units",
    )
    names = ("reliq.message.queue_arguments", "reliq.failover.brokers.without_password")
    outside = {
        f"{module}: {item.target}"
        for module, (path, package) in KNOWN.items()
        if _within(module, ("reliq.web",))
        for item in imports_of(path.read_text("utf-8"), module, package=package)
        if _within(item.target, ("reliq",))
        if not _within(item.target, ("reliq.web", *allowed, *names))
    }
    assert set() == outside


@pytest.mark.slow
def test_no_import_cycles():
    """Modules do not import each other in a cycle, even within one folder."""
    waiting, done = graph(types=False), set()
    while free := [name for name, needs in waiting.items() if needs <= done]:
        done.update(free)
        for name in free:
            del waiting[name]
    cycles: dict[str, set[str]] = {}
    assert cycles == waiting


@pytest.mark.slow
def test_circles_of_types_are_listed():
    """Files that import each other for types are listed, and the list only becomes shorter."""
    reached = graph(types=True)
    for middle in KNOWN:  # Warshall's algorithm: it adds all modules that a module leads to
        for name in KNOWN:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    circles = {
        frozenset(other for other in known if name in reached[other])
        for name, known in reached.items()
        if name in known
    }
    assert {frozenset(names) for names in CIRCLES} == circles


def test_parts_are_no_mixins():
    """Transports, channels and sessions get their parts as objects and have at most one base."""
    several = [
        f"{name}.{node.name}"
        for name, (path, _) in KNOWN.items()
        if room_of(name) in {"reliq.transports", "reliq.consumer"}
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        if len(bases := [ast.unparse(base) for base in node.bases]) > 1 and "Protocol" not in bases
    ]
    # Caught under two names.
    assert ["reliq.transports.publish.publish_buffer._BatchUncertain"] == several


def test_only_one_module_asks_for_hooks_at_forks():
    """Only one module registers hooks at forks.

    Hooks of several files would run in the order of their imports and wait for each other.
    """
    asking = [name for name, (path, _) in KNOWN.items() if "register_at_fork" in path.read_text()]
    assert ["reliq.forks"] == asking


def test_every_lock_is_one_of_its_process():
    """Every lock is an OwnLock: a child would wait forever for one that a parent's thread held."""
    word = re.compile(r"threading\.R?Lock\b")
    making = [name for name, (path, _) in KNOWN.items() if word.search(path.read_text())]
    # A child creates its own posts before it uses them: see Wire._leave_parent.
    assert ["reliq.client.pipeline", "reliq.forks"] == making


@pytest.mark.slow
def test_late_imports_listed_still_exist():
    """Every late import in the list of exceptions still exists."""
    late = {
        (module, item.target)
        for module, (path, package) in KNOWN.items()
        for item in imports_of(path.read_text("utf-8"), module, package=package)
        if item.late
    }
    assert late.issuperset(LATE_IMPORTS)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("reliq.options", "from .consumer import session", "upward"),
        ("reliq.options", "from .transports.base import Channel", "upward"),
        (
            "reliq.values.values",
            "if TYPE_CHECKING:\n    from ..consumer.sessions import Session",
            "upward",
        ),
        ("reliq.routing.routes", "from .. import signals", "beside it"),
        ("reliq.consumer.sessions", "import redis", "only reliq.client may"),
        ("reliq.consumer.sessions", "from ..store import store", "chooses an engine"),
        ("reliq.transports.base", "import reliq.store.store", "chooses an engine"),
        ("reliq.values.protocol", "from kombu.utils import uuid", "may"),
        ("reliq.transports.base", "import celery", "may"),
        ("reliq.consumer.sessions", "def f():\n    from .. import errors", "inside a function"),
        ("reliq.consumer.sessions", "import importlib\nimportlib.import_module('redis')", "may"),
        ("reliq.stray", "import os", "in no layer"),
    ],
)
def test_the_walk_notices(module, source, expected):
    """The walk detects each kind of breach, so an empty result for the package is conclusive."""
    assert expected in "\n".join(complaints(module, source, frozenset(KNOWN)))


def test_importing_reliq_starts_nothing():
    """`import reliq` loads neither Celery nor Click, and starts no thread."""
    import subprocess

    script = (
        "import sys, threading, reliq\n"
        "assert 'celery' not in sys.modules, 'celery'\n"
        "assert 'click' not in sys.modules, 'click'\n"
        "assert threading.active_count() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.stderr == ""
    assert done.returncode == 0
