"""The site: `python -m sphinx -W --keep-going -b html docs OUT`. It needs no network."""

from __future__ import annotations

import collections.abc
import contextlib
import re
import typing
from typing import TYPE_CHECKING

import click
from pygments.lexers.special import TextLexer

from reliq import __version__ as release
from reliq.cli import main

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "reliq"
version = release
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_click",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"reliq {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# As GitHub shows a page: its anchors of headings, its diagrams, two hyphens as they are.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
smartquotes = False
highlight_language = "none"

linkcheck_ignore = [r"https?://(localhost|127\.)"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
default_role = "code"  # of docstrings

# Copies; CONTRIBUTING.md says how to renew them.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.inv"),
    "celery": ("https://docs.celeryq.dev/en/stable", "inventories/celery.inv"),
    "kombu": ("https://docs.celeryq.dev/projects/kombu/en/stable", "inventories/kombu.inv"),
}


def setup(app: Sphinx) -> None:
    """Add what the pages and docstrings of reliq need beside the extensions."""
    for language in ("acl", "promql"):
        app.add_lexer(language, TextLexer)
    load_commands(main)
    app.connect("source-read", name_links)
    app.connect("doctree-read", allow_cards)
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("sphinx-click-process-description", show_examples)
    app.connect("missing-reference", find_type, priority=400)


def load_commands(group: click.Group) -> None:
    """Replace the placeholders of a group's commands, which are loaded when they run."""
    for name in list(group.commands):
        _, command, _ = group.resolve_command(click.Context(group), [name])
        if command is not None:
            group.commands[name] = command
        if isinstance(command, click.Group):
            load_commands(command)


def name_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the title of a page where a link's text is its file's name.

    A link to a folder or a document outside docs/ is its text only: the site has no such page.
    """
    folder = (app.srcdir / page).parent

    def outside(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        linked = target.is_relative_to(app.srcdir) or (target.is_file() and target.suffix != ".md")
        return link[0] if linked else link[1]

    text = re.sub(r"\[([^\[\]]+)\]\((\.\./[^)#\s]*)(?:#[\w-]+)?\)", outside, source[0])
    source[0] = re.sub(r"\[([\w./-]+\.md)\]\((\1(?:#[\w-]+)?)\)", r"[](\2)", text)


def allow_cards(app: Sphinx, _doctree: object) -> None:
    """Let the cards of chaos runs stand in no toctree: a table of chaos/README.md leads to them."""
    page = app.env.docname
    if page.startswith("chaos/"):
        app.env.metadata[page]["orphan"] = True


# "name: text" or "name, name: text", at the start of a line or of a sentence.
_ITEM = re.compile(r"(?:^|(?<=[.;]) )([a-z]\w*(?:, [a-z]\w*)*): ", re.MULTILINE)


def list_arguments(
    _app: Sphinx, _kind: str, _name: str, _found: object, _options: object, lines: list[str]
) -> None:
    """Turn each "name: text" of a docstring into an item of a list, Celery's names into links."""
    paragraphs = "\n".join(lines).split("\n\n")
    text = "\n\n".join(map(_listed, paragraphs))
    text = re.sub(r"``((?:celery|kombu)\.[\w.]+)``", r":any:`\1`", text)
    lines[:] = text.split("\n")


def _listed(paragraph: str) -> str:
    before, *items = _ITEM.split(paragraph)
    if not items or paragraph.startswith(" "):
        return paragraph
    listed = [
        f"- **{names}**: {' '.join(text.split())}"
        for names, text in zip(items[::2], items[1::2], strict=True)
    ]
    return "\n".join([before.rstrip(), "", *listed])


def show_examples(_app: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Turn the examples of a command's help into a block of code."""
    text = re.sub(r"(?m)^\| (Examples?:)$", r"\1\n\n.. code-block:: sh\n", "\n".join(lines))
    lines[:] = re.sub(r"(?m)^\| ", "   ", text).split("\n")


def find_type(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: Element
) -> Element | None:
    """Find a type by its last name: annotations name what is imported for type checkers only."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py":
        return None
    for module in (typing, collections.abc, contextlib):
        if name in module.__all__:
            node["reftarget"] = f"{module.__name__}.{name}"  # for intersphinx
            return None
    domain = env.get_domain("py")
    found = [known for known in domain.objects if known.rpartition(".")[2] == name]
    if len(found) != 1:
        return None
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], found[0], node, contnode
    )
