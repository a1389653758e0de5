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
    "said": "the noun: text, reply, parsed",
    "unsaid": "pending",
    "asked": "request",
    "look": "check, read, examine",
    "looking": "lookup",
    "found": "the noun: matches, findings, queues",
}
# Replaced words that may be parts of a name, as in "require_one_of".
WHOLE = {"one": "the noun: consumer, item"}
# Names that the documentation promises, stored names, and those of Python.
PROMISED = {"BatchesUntold", "Untold", "untold", "partitions_untold", "looking"}
PROMISED |= {"NotFound", "_NOT_FOUND", "FileNotFoundError"}
# Promised attributes, in results of the Inspector. A local variable has another name.
ATTRIBUTES = {"found", "asked"}


def parts(name):
    """Return the words of an identifier, in lower case, with spaces between them."""
    return f" {' '.join(re.findall('[A-Z]?[a-z]+|[A-Z]+', name)).lower()} "


def is_old(name):
    """Whether *name* contains a replaced word."""
    words = parts(name)
    return words.strip() in WHOLE or any(f" {word} " in words for word in REPLACED)


def names_of(source):
    """Yield the identifiers of Python code, without promised attributes and their declarations."""
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        declared = re.match(rf"    {re.escape(token.string)}: [^=]+$", token.line)
        promised = token.string in ATTRIBUTES and (before == "." or declared)
        if token.type == tokenize.NAME and not promised:
            yield token.string
        before = token.string


def old_words(source):
    """Return the identifiers of *source* that contain a replaced word."""
    return {name for name in names_of(source) if name not in PROMISED and is_old(name)}


def old_words_of_lua(source):
    """Return the identifiers of a script that contain a replaced word."""
    code = re.sub(r"--.*|'[^'\n]*'", " ", source)
    return {
        name for name in re.findall(r"[A-Za-z_]\w*", code) if name not in PROMISED and is_old(name)
    }


def test_identifiers():
    """No identifier or file of the package contains a word that the field says otherwise."""
    checks = {".py": old_words, ".lua": old_words_of_lua}
    files = [path for path in (ROOT / "reliq").rglob("*") if path.suffix in checks]
    faulty = {
        str(path.relative_to(ROOT)): names
        for path in sorted(files)
        if (names := checks[path.suffix](path.read_text("utf-8")))
    }
    assert {} == faulty
    assert [] == [path.name for path in files if is_old(path.stem)]


def test_old_identifiers():
    """A replaced word is found in each form of an identifier, but not inside another word."""
    source = "is_away = Telling(_told); goes_on_by = TELL_RUNNING; foretold = faraway = untold"
    assert {"is_away", "Telling", "_told", "goes_on_by", "TELL_RUNNING"} == old_words(source)
    source = "found = search.found; require_one_of(_one, asked=looking, looked=NotFound)"
    assert {"found", "_one", "asked"} == old_words(source)
    source = "local found = one -- asked\nfor look in 'said' do tags.told() end"
    assert {"found", "one", "look", "told"} == old_words_of_lua(source)
