"""The texts of the package and of its documents are plain sentences with nouns as subjects."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
from click import Context, Group

from reliq.cli import main

ROOT = Path(__file__).parents[2]
CLAUSE = r"(?:who|whoever|whose|what|whatever|where|wherever)\b"
PATTERNS = {
    "begins with a relative clause": re.compile(
        rf"\A{CLAUSE}(?!.*\?\Z)", re.IGNORECASE | re.DOTALL
    ),
    "returns, or yields, a clause": re.compile(
        rf"\b(?:returns?|yields?|gives?|takes?|finds?) {CLAUSE}", re.IGNORECASE
    ),
    "so many, so long": re.compile(r"\bso (?:many|much|long|often)(?! as\b)", re.IGNORECASE),
    "several: again": re.compile(r"\bseveral: again\b", re.IGNORECASE),
    "nobody, somebody": re.compile(r"\b(?:nobody|somebody|whoever)\b", re.IGNORECASE),
}


def faults(texts):
    """Return the texts that match a pattern, each with the pattern's name."""
    return [
        f"{place}: {name}: {text.strip().splitlines()[0]}"
        for place, text in texts
        for name, pattern in PATTERNS.items()
        if pattern.search(text.strip())
    ]


def docstrings(path):
    """Yield each docstring of a file, including those of attributes, with its position."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield f"{path.relative_to(ROOT)}:{node.lineno}", value.value


def commands(command, name="reliq"):
    """Yield the help of a command, of its options and of its subcommands."""
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.opts[0]}", getattr(parameter, "help", None) or ""
    if isinstance(command, Group):
        context = Context(command)
        for part in command.list_commands(context):
            yield f"{name} {part}", command.get_command(context, part).help or ""
            _, found, _ = command.resolve_command(context, [part])
            yield from commands(found, f"{name} {part}")


def headings(path):
    """Yield the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(r"^#+ (.*)$", text, re.MULTILINE):
        yield path.name, match[1]


def test_docstrings():
    """The docstrings of the package are free of the faulty patterns."""
    texts = [text for path in sorted((ROOT / "reliq").rglob("*.py")) for text in docstrings(path)]
    assert len(texts) > 2800
    assert [] == faults(texts)


def test_help():
    """The help of each command and option is free of the faulty patterns."""
    texts = list(commands(main))
    assert len(texts) > 200
    assert [] == faults(texts)


def test_headings():
    """The headings of the documents are free of the faulty patterns."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [text for page in pages for text in headings(page)]
    assert len(texts) > 200
    assert [] == faults(texts)


@pytest.mark.parametrize(
    "text",
    [
        "Who asks for one queue waits.",
        "Return what waits.",
        "What is due.",
        "At most so many.",
        "This one; several: again.",
        "Nobody asks.",
    ],
)
def test_each_pattern(text):
    """Each pattern finds an example of its fault."""
    assert [] != faults([("here", text)])


@pytest.mark.parametrize("text", ["What does a task cost?", "Whether it runs.", "As long as it."])
def test_plain_text(text):
    """Plain text matches no pattern."""
    assert [] == faults([("here", text)])


# Words that identifiers had, and the field's words for them. See the style of the texts above.
REPLACED = {
    "told": "reported",
    "tell": "report",
    "tells": "reports",
    "telling": "reporting",
    "untold": "unreachable",
    "goes on": "continues",
    "away": "unreachable",
    "company": "occupancy",
}
# Names that the documentation promises.
PROMISED = {"BatchesUntold", "Untold", "untold", "partitions_untold"}


def parts(name):
    """Return the words of an identifier, in lower case, with spaces between them."""
    return f" {' '.join(re.findall('[A-Z]?[a-z]+|[A-Z]+', name)).lower()} "


def old_words(source):
    """Return the identifiers of *source* that contain a replaced word."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    names = {token.string for token in tokens if token.type == tokenize.NAME} - PROMISED
    return {name for name in names if any(f" {word} " in parts(name) for word in REPLACED)}


def test_identifiers():
    """No identifier of the package contains a word that the field says otherwise."""
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / "reliq").rglob("*.py"))
        if (names := old_words(path.read_text("utf-8")))
    }
    assert {} == found


def test_old_identifiers():
    """A replaced word is found in each form of an identifier, but not inside another word."""
    source = "is_away = Telling(_told); goes_on_by = TELL_RUNNING; foretold = faraway = untold"
    assert {"is_away", "Telling", "_told", "goes_on_by", "TELL_RUNNING"} == old_words(source)
