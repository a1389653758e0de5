"""Line budgets per folder. A change that exceeds one edits the table, and its body says why."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"
TEXT = {".py", ".lua", ".html", ".css", ".js", ".typed"}

# Lines of all text files, those of subfolders named here not counted twice.
BUDGETS = {
    "": 1_870,
    "admin": 3_030,
    "batches": 615,
    "cli": 4_530,
    "consumer": 3_745,
    "embedded": 700,
    "engines": 250,
    "engines/redis": 6_300,
    "engines/redis/cluster": 3_000,
    "engines/redis/lua": 3_750,
    "failover": 650,
    "integrations": 2_690,
    "message": 650,
    "metrics": 550,
    "migration": 700,
    "routing": 1_660,
    "spool": 350,
    "store": 2_200,
    "transfer": 650,
    "transports": 6_160,
    "web": 4_310,
}
MODULES = 264
CLASS_LINES = 598
STORE_NAMES = 103


def weights() -> Counter[str]:
    """Return the lines of each folder of the table."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*"):
        if path.suffix in TEXT and path.is_file():
            inside = path.parent.relative_to(PACKAGE)
            names = [inside, *inside.parents]
            home = next(str(n) for n in names if str(n) in BUDGETS or str(n) == ".")
            found["" if home == "." else home] += len(path.read_text("utf-8").splitlines())
    return found


def test_no_folder_exceeds_its_budget():
    """Nor is a budget more than a tenth above what is there: it would bound nothing."""
    found = weights()
    assert {} == {name: n for name, n in found.items() if n > BUDGETS[name]}
    assert {} == {name: n for name, n in BUDGETS.items() if n > found[name] * 1.1 + 50}


def test_modules_and_classes():
    """At most so many modules, and no class that is too long to read."""
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) <= MODULES
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno < CLASS_LINES, f"{path.name}: {node.name}"


def test_names_of_the_store():
    """Public methods of the store's contract."""
    tree = ast.parse((PACKAGE / "store" / "protocol.py").read_text("utf-8"))
    names = {
        item.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
    }
    assert len(names) <= STORE_NAMES
