"""docs/design.md names every thread, lock and part of a process."""

import ast
import re
from pathlib import Path

import reliq.cli  # everything that registers a part
import reliq.metrics  # noqa: F401
from reliq import forks

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "reliq"
PAGE = (ROOT / "docs" / "design.md").read_text("utf-8")
SECTION = PAGE.partition("## Threads, locks and forks")[2].partition("\n## ")[0]
FIRST_CELLS = re.findall(r"^\| `?([^|`]+?)`? \|", SECTION, re.MULTILINE)


def called(node, name):
    """Whether *node* is a call of *name*, also as an attribute."""
    function = getattr(node, "func", None)
    return name in {getattr(function, "id", None), getattr(function, "attr", None)}


def trees():
    """Yield the path and syntax tree of each module except forks.py, which has its own locks."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path != PACKAGE / "forks.py":
            yield path, ast.parse(path.read_text("utf-8"))


def test_every_lock_is_in_the_table():
    """The table lists every lock by class and attribute, with its file."""
    found = {}
    for path, tree in trees():
        for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for node in kind.body:
                if isinstance(node, ast.Assign) and called(node.value, "OwnLock"):
                    name = f"{kind.name}.{node.targets[0].id}"
                    found[name] = path.relative_to(PACKAGE).as_posix()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| .* \| `([\w./]+)` \|$", SECTION, re.MULTILINE))
    assert len(found) > 10
    assert found == {name: rows.get(name) for name in found}
    found["Pipeline.lock"] = "client/pipeline.py"  # a child makes its own before its use
    assert set(found) == {name for name in rows if "ock" in name or name.startswith(OTHERS)}


def test_every_lock_has_a_rule_for_nested_calls():
    """For each lock, the table states what a call of a signal handler does that needs it again.

    Only reentrant locks exist: another kind would wait forever for its own thread.
    """
    rows = re.findall(r"^\| `[\w.]+[lL]ock` \| (.+) \|$", SECTION, re.MULTILINE)
    assert len(rows) > 20
    assert [] == [row for row in rows if not all(row.split(" | ")) or len(row.split(" | ")) != 3]
    kinds = re.compile(r"\b(Lock|Condition|Semaphore|BoundedSemaphore|Barrier)\(")
    making = [path for path, _ in trees() if kinds.search(path.read_text("utf-8"))]
    making += [PACKAGE / "forks.py"] * bool(kinds.search((PACKAGE / "forks.py").read_text("utf-8")))
    assert [] == making


OTHERS = ("SlotMap",)


def test_every_thread_is_in_the_table():
    """The table lists every thread by its name, which a loop gives to its own."""
    nodes = [node for _, tree in trees() for node in ast.walk(tree)]
    named = [
        keyword.value
        for node in nodes
        if called(node, "Thread")
        for keyword in node.keywords
        if keyword.arg == "name"
    ]
    named += [node.args[0] for node in nodes if called(node, "Loop")]
    threads = {name.value for name in named if isinstance(name, ast.Constant)}
    assert len(threads) >= 3
    assert threads == {name for name in FIRST_CELLS if name.startswith("reliq-")}


def test_every_part_is_in_the_table():
    """The table lists every part that is registered for forks."""
    assert {part.name for part in forks._parts} <= set(FIRST_CELLS)
