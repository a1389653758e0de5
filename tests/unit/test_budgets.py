"""Line budgets per folder. A change beyond one edits the table; its commit gives the reason."""

from __future__ import annotations

import ast
from collections import Counter
from inspect import getattr_static
from pathlib import Path
from types import FunctionType

from reliq.engines.redis.batches import RedisBatches
from reliq.engines.redis.notifier import RedisNotifier
from reliq.engines.redis.reads import RedisReads
from reliq.engines.redis.store import RedisStore
from reliq.lazy import Lazy

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"
TEXT = {".py", ".lua", ".html", ".css", ".js", ".typed"}

# Lines of all text files; those of a listed subfolder count only there.
BUDGETS = {
    "": 1_810,
    "admin": 2_850,
    "batches": 550,
    "cli": 4_270,
    "consumer": 3_320,
    "embedded": 700,
    "engines": 240,
    "engines/redis": 6_130,
    "engines/redis/cluster": 2_790,
    "engines/redis/lua": 3_140,
    "failover": 290,
    "integrations": 2_520,
    "message": 620,
    "metrics": 500,
    "migration": 600,
    "routing": 1_630,
    "spool": 340,
    "store": 1_400,
    "transfer": 560,
    "transports": 5_940,
    "web": 3_930,
}
MODULES = 228
CLASS_LINES = 301
NAMES = {RedisStore: 72, RedisBatches: 17, RedisNotifier: 9, RedisReads: 14}
STEPS = (FunctionType, property, Lazy)


def weights() -> Counter[str]:
    """Return the number of lines of each folder in the table."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*"):
        if path.suffix in TEXT and path.is_file():
            inside = path.parent.relative_to(PACKAGE)
            names = [inside, *inside.parents]
            home = next(str(n) for n in names if str(n) in BUDGETS or str(n) == ".")
            found["" if home == "." else home] += len(path.read_text("utf-8").splitlines())
    return found


def test_no_folder_exceeds_its_budget():
    """No folder exceeds its budget, and no budget exceeds its folder by more than a tenth.

    A looser budget would bound nothing.
    """
    found = weights()
    assert {} == {name: n for name, n in found.items() if n > BUDGETS[name]}
    assert {} == {name: n for name, n in BUDGETS.items() if n > found[name] * 1.1 + 50}


def test_modules_and_classes():
    """The number of modules and the length of each class stay within their limits."""
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) <= MODULES
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno < CLASS_LINES, f"{path.name}: {node.name}"


def test_names_of_the_store():
    """The store and its parts stay within their limits of public methods and properties."""
    for part, most in NAMES.items():
        names = [name for name in dir(part) if not name.startswith("_")]
        steps = [name for name in names if isinstance(getattr_static(part, name), STEPS)]
        assert len(steps) <= most, part
