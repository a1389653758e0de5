"""Line budgets per folder. A change beyond one edits the table; its commit gives the reason."""

from __future__ import annotations

from collections import Counter
from inspect import getattr_static
from pathlib import Path
from types import FunctionType

from reliq.lazy import Lazy
from reliq.store.batches import RedisBatches
from reliq.store.notifier import RedisNotifier
from reliq.store.reads import RedisReads
from reliq.store.store import RedisStore

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"
TEXT = {".py", ".lua", ".html", ".css", ".js", ".typed"}

# Lines of all text files, and 5 % of air; those of a listed subfolder count only there.
BUDGETS = {
    "": 1_850,
    "admin": 3_080,
    "batches": 1_670,
    "cli": 4_390,
    "client": 2_690,
    "client/cluster": 1_650,
    "consumer": 3_210,
    "doctor": 720,
    "embedded": 835,
    "failover": 310,
    "integrations": 2_520,
    "lua": 3_990,
    "message": 720,
    "metrics": 535,
    "migration": 670,
    "routing": 1_660,
    "spool": 470,
    "store": 3_230,
    "store/cluster": 980,
    "tasks": 470,
    "transfer": 435,
    "transports": 6_530,
    "values": 1_280,
    "web": 4_090,
}
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


def test_names_of_the_store():
    """The store and its parts stay within their limits of public methods and properties."""
    for part, most in NAMES.items():
        names = [name for name in dir(part) if not name.startswith("_")]
        steps = [name for name in names if isinstance(getattr_static(part, name), STEPS)]
        assert len(steps) <= most, part
