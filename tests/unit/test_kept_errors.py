"""No error is kept by the stack that raised it: such a cycle keeps that stack alive.

An error refers to its traceback, the traceback to its frames, and a frame to its locals. If a local
leads to the error, everything that the caller held stays alive until the garbage collector runs.
This includes results whose destructor has an effect. An error that is kept, or raised from a name,
is therefore a new one: `again(error)`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"

# Methods that store their argument beyond the end of the handler.
_KEEPERS = frozenset({"add", "append", "appendleft", "insert", "partial", "put", "setdefault"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _bare_names(node: ast.AST) -> set[str]:
    """Return the names that *node* evaluates to, also within a literal."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.IfExp, ast.BoolOp)):
        return {name for child in ast.iter_child_nodes(node) for name in _bare_names(child)}
    if isinstance(node, (ast.Starred, ast.NamedExpr)):
        return _bare_names(node.value)
    return set()


class _Walk(ast.NodeVisitor):
    """Collects (line, fault) for each kept error, by the names that hold a caught error."""

    def __init__(self) -> None:
        self.caught: tuple[str, ...] = ()
        self.found: list[tuple[int, str]] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, _FUNCTIONS):
            outer, self.caught = self.caught, ()
            self.generic_visit(node)
            self.caught = outer
        else:
            super().visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        outer = self.caught
        if node.name is not None:
            self.caught = (*outer, node.name)
        self.generic_visit(node)
        self.caught = outer

    def _keeps(self, node: ast.AST, *values: ast.AST | None) -> None:
        for value in values:
            names = _bare_names(value) if value is not None else set()
            for name in sorted(names.intersection(self.caught)):
                self.found.append((node.lineno, f"keeps the caught {name}"))

    def visit_Assign(self, node: ast.Assign) -> None:
        self._keeps(node, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._keeps(node, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._keeps(node, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._keeps(node, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).rpartition(".")[2] in _KEEPERS:
            self._keeps(node, *node.args, *[keyword.value for keyword in node.keywords])
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        raised = _bare_names(node.exc) if node.exc is not None else set()
        for name in sorted(name for name in raised if not name.lstrip("_")[:1].isupper()):
            if name not in self.caught:
                self.found.append((node.lineno, f"raises {name}, which stays in this frame"))
        if raised and node.cause is not None and raised & _bare_names(node.cause):
            self.found.append((node.lineno, "raises an error from itself"))
        self.generic_visit(node)


def complaints(source: str) -> list[tuple[int, str]]:
    """Return (line, fault) for each error that *source* keeps."""
    walk = _Walk()
    walk.visit(ast.parse(source))
    return walk.found


@pytest.mark.slow
def test_no_error_is_kept():
    """The package keeps no error."""
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, what in complaints(path.read_text("utf-8"))
    ]
    assert [] == found


@pytest.mark.parametrize(
    "source",
    [
        "try:\n f()\nexcept E as exc:\n lost = exc",
        "try:\n f()\nexcept E as exc:\n self.lost = exc",
        "try:\n f()\nexcept E as exc:\n lost: E = exc",
        "try:\n f()\nexcept E as exc:\n lost, n = exc, 1",
        "try:\n f()\nexcept E as exc:\n lost += [exc]",
        "try:\n f()\nexcept E as exc:\n if lost := exc:\n  pass",
        "try:\n f()\nexcept E as exc:\n results.append((f, exc))",
        "try:\n f()\nexcept E as exc:\n later(partial(g, exc))",
        "def f():\n error = E()\n raise error",
        "def f(error):\n raise error",
        "def f(error, exc):\n raise error from exc",
        "for reply in replies:\n raise reply",
        "try:\n f()\nexcept E as exc:\n raise exc from exc",
    ],
)
def test_the_walk_notices(source):
    """The walk detects each kind of cycle, so an empty result for the package is conclusive."""
    assert 1 == len(complaints(source))


@pytest.mark.parametrize(
    "source",
    [
        "try:\n f()\nexcept E as exc:\n raise",
        "try:\n f()\nexcept E as exc:\n raise exc",
        "try:\n f()\nexcept E as exc:\n raise translate(exc) from exc",
        "try:\n f()\nexcept E as exc:\n text = str(exc)",
        "try:\n f()\nexcept E as exc:\n lost = again(exc)",
        "try:\n f()\nexcept E as exc:\n logger.info('%s', exc)",
        "def f(error):\n raise again(error)",
        "raise E",
        "raise E('x')",
        "raise _E",
    ],
)
def test_what_is_harmless(source):
    """An error that ends with its handler, or is new, is no fault."""
    assert [] == complaints(source)
