"""Objects are made with named values: no call of a class of the package unpacks a tuple."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
CLASSES = {
    node.name: node
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}
# Some of these have the name of an own class.
FOREIGN = {
    name.name
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ImportFrom) and not node.level and node.module != "reliq"
    if not str(node.module).startswith("reliq.")
    for name in node.names
}


def is_variadic(name: str) -> bool:
    """Whether a class of the package takes any number of values of one kind, as an error does."""
    made = CLASSES.get(name)
    if made is None:
        return name.endswith(("Error", "Exception"))
    for part in made.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return part.args.vararg is not None
    return any(is_variadic(ast.unparse(base)) for base in made.bases)


def unpacking(tree: ast.AST) -> list[str]:
    """Return the calls of the package's classes in *tree* that unpack positional arguments."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not any(type(arg) is ast.Starred for arg in node.args):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        own = name in CLASSES and name not in FOREIGN
        if name == "cls" or (own and not is_variadic(name)):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_no_constructor_unpacks_a_tuple():
    """No call of an own constructor unpacks a tuple into its arguments."""
    found = [f"{path.name}:{call}" for path, tree in TREES.items() for call in unpacking(tree)]
    assert [] == found, "name the arguments, or use _make for a stored row:\n" + "\n".join(found)


def test_an_unpacked_tuple_is_found():
    """The check finds an unpacked tuple, also through a module, and allows variadic classes."""
    calls = ["Outgoing(*route, *times)", "transports.Credit(link, *rest)", "cls(*parts)"]
    assert [f"1: {call}" for call in calls] == [unpacking(ast.parse(call))[0] for call in calls]
    for call in ("BrokerUnavailable(*error.args)", "Move._make((tag, *rest))", "Prefix(*names)"):
        assert [] == unpacking(ast.parse(call))
