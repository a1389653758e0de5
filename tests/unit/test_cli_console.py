from io import StringIO
from urllib.parse import quote

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from reliq.cli import main
from reliq.cli.application import Application
from reliq.cli.options import Number
from reliq.cli.options import duration as seconds_of
from reliq.cli.tables import listing, rate
from reliq.cli.target import split_urls
from reliq.failover.brokers import without_password
from reliq.printable import plain
from reliq.units import duration, size


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0, "0s"),
        (0.25, "250ms"),
        (59.9, "59s"),
        (60, "1m"),
        (3661, "1h 1m"),
        (3600, "1h"),
        (90_061, "1d 1h"),
        (86_405, "1d"),
    ],
)
def test_a_duration_in_its_two_largest_units(seconds, expected):
    """A duration shows its two largest units: short for a column, exact for a decision."""
    assert expected == duration(seconds)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("90", 90), ("1.5", 1.5), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800)],
)
def test_a_duration_that_is_typed(given, expected):
    """A typed duration is a number of seconds or parts with units."""
    assert expected == seconds_of(given)


@pytest.mark.parametrize("given", ["", "m", "1h 30m", "-5", "1y", "soon"])
def test_a_duration_that_is_none(given):
    """The error for an invalid duration states the expected form."""
    with pytest.raises(click.BadParameter, match="expected seconds, or for example 15m"):
        seconds_of(given)


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "soon"])
def test_a_number_that_is_none(given):
    """An invalid number is refused, including NaN and infinity, which Click's own range accepts."""
    with pytest.raises(click.BadParameter):
        Number(min=0).convert(given, None, None)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2 * 10**6, "2.0 MB")],
)
def test_a_size(number, expected):
    """A size is shown in its largest decimal unit."""
    assert expected == size(number)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(None, "-"), (0, "0"), (0.25, "0.2"), (9.96, "10.0"), (1234.5, "1,234")],
)
def test_a_rate(number, expected):
    """A low rate shows a fraction, a high rate whole messages."""
    assert expected == rate(number).plain


def test_text_that_cannot_talk_to_a_terminal():
    """Unprintable characters are escaped, and the text stays on one line."""
    assert r"a\x1b[31m\nb é" == plain("a\x1b[31m\nb é")
    assert "" == plain(None)


def test_urls_of_several_brokers():
    """Semicolons and repeated options separate URLs; consecutive Sentinels form one broker."""
    assert ("reliq://a", "reliq://b", "reliq://c") == split_urls(
        ["reliq://a;reliq://b", " reliq://c;"]
    )
    sentinels = "reliq-sentinel://s1:26379/0;reliq-sentinel://s2:26379/0"
    assert (sentinels, "reliq://b") == split_urls([sentinels, "reliq://b"])
    one, other = "reliq-cluster://a;reliq-cluster://b", "reliq-cluster://c;reliq-cluster://d"
    assert (one, other) == split_urls([one, other])
    assert (f"{one};{other}", "reliq://e") == split_urls([f"{one};{other};reliq://e"])
    assert "reliq-sentinel://s1;reliq-sentinel://s2" == without_password(
        "reliq-sentinel://u:p@s1;reliq-sentinel://:p@s2"
    )


class App:
    """The part of a Celery application that a command reads."""

    def __init__(self, url, **options):
        self._url, self._options = url, options

    def connection_for_write(self):
        """Return a connection that is not open."""
        from kombu import Connection

        import reliq  # noqa: F401 - Kombu alone learns the scheme from it

        return Connection(self._url, **self._options)


def test_an_application_with_tls(certificates):
    """`broker_use_ssl` becomes an equivalent URL."""
    import ssl

    ca = str(certificates.ca)
    given = {"ssl_ca_certs": ca, "ssl_cert_reqs": ssl.CERT_REQUIRED, "ciphers": "HIGH"}
    urls, options = Application(App("reliq://:p@h:1/2", ssl=given)).brokers()
    expected = f"ssl_ca_certs={quote(ca, safe='')}&ssl_cert_reqs=CERT_REQUIRED&ssl_ciphers=HIGH"
    assert (f"reliqs://:p@h:1/2?{expected}",) == urls
    listed = ["reliq-sentinel://h:1/0", "reliqs://i:2/0?ssl_ca_certs=x", "reliqs://j:3/0"]
    urls, _ = Application(App(listed, ssl=given)).brokers()
    assert (f"{listed[0]}?{expected}", listed[1], f"{listed[2]}?{expected}") == urls
    urls, _ = Application(App(listed, ssl=True)).brokers()
    assert (f"{listed[0]}?ssl=true", listed[1], listed[2]) == urls
    assert {} == options
    assert ("reliqs://h:1/0",) == Application(App("reliq://h:1/0", ssl=True)).brokers()[0]
    unverified = {"ssl_cert_reqs": None}
    urls, _ = Application(App("reliq://h:1/0", ssl=unverified)).brokers()
    assert ("reliqs://h:1/0?ssl_cert_reqs=none",) == urls
    with pytest.raises(click.UsageError, match="ssl_ca_certs"):
        Application(App("reliq://h:1/0", ssl={"ca_certs": "/nowhere.pem"})).brokers()


def test_an_application_with_several_brokers():
    """A command uses all URLs of an application, with their passwords, and its options."""
    urls = ["reliq://:a@h:1/0", "reliq://:b@i:2/0"]
    options = {"global_keyprefix": "shop:"}
    found = Application(App(urls, transport_options=options)).brokers()
    assert (tuple(urls), options) == found


ROWS = [{"name": "orders", "error": "x" * 30, "age": "5s", "id": "7" * 20}]
COLUMNS = {"name": "name", "error": "error", ">age": "age", "id": "id"}


def shown(width, **how):
    """Return the lines of a table on a terminal of a given width."""
    console = Console(width=width, file=StringIO())
    console.print(listing(ROWS, COLUMNS, **how))
    return console.file.getvalue().splitlines()


def cells(line):
    """Return the texts of one row of a table."""
    return [cell.strip() for cell in line[1:-1].split("│")]


def test_a_narrow_terminal_leaves_out_optional_columns():
    """A table loses its last optional columns first, names them, and breaks no cell."""
    whole = shown(100, optional=("age", "id"))
    assert ["orders", "x" * 30, "5s", "7" * 20] == [
        cell.strip() for cell in whole[3][1:-1].split("│")
    ]
    narrow = shown(55, optional=("age", "id"))
    assert ["orders", "x" * 30, "5s"] == cells(narrow[3])
    assert "without id: too narrow; --json shows all" == narrow[-1]
    narrower = shown(48, optional=("age", "id"))
    assert ["orders", "x" * 30] == cells(narrower[3])
    assert "without age, id: too narrow; --json shows all" == narrower[-1]


def test_a_table_that_does_not_fit_is_folded():
    """Cells that are too wide without optional columns are folded, and lose no character."""
    lines = shown(30, optional=("age", "id"))
    rows = [cells(line) for line in lines if line.startswith("│")]
    assert ("orders", "x" * 30) == tuple("".join(parts) for parts in zip(*rows, strict=True))


@pytest.mark.parametrize("words", ["", "batch", "dead", "embedded", "queue", "spool"])
def test_the_summaries_of_commands_are_whole(words):
    """The help of a group shows the whole first sentence of each command."""
    done = CliRunner().invoke(main, [*words.split(), "--help"], terminal_width=80)
    listed = done.output.partition("\nCommands:\n")[2]
    assert listed
    assert "..." not in listed
    assert listed.strip().endswith(".")
