"""The ways to use reliq in a program: entry point, import, schemes, TLS and logins."""

from __future__ import annotations

import ssl
import subprocess
import sys
from ast import literal_eval
from urllib.parse import quote

import pytest
from kombu import Connection

from reliq import BrokerUnavailable, ConfigurationError
from reliq.admin import Inspector
from reliq.client import tls
from tests.support.audits import assert_balanced

from ..kombu.test_kombu_connection import shown
from ..kombu_client import declare, get, publish


def run(script, *arguments):
    """Run *script* in a new interpreter, warnings as errors; return (code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


def carries(connection):
    """Whether a message passes through *connection*."""
    declare(connection, "q")
    publish(connection, "q", "x")
    message = get(connection, "q")
    message.ack()
    return message.payload == "x"


# -- the entry point and the import


@pytest.mark.slow
def test_celery_needs_no_import(redis_server, redis_url):
    """A Celery application uses reliq:// without importing reliq."""
    url = redis_server.url("reliq")
    script = """
import sys
from celery import Celery
app = Celery("app", broker=sys.argv[1])

@app.task
def add(x, y): ...

add.delay(1, 2)
with app.connection_for_read() as connection:
    message = connection.default_channel.basic_get("celery")
    print(message.headers["task"].rpartition(".")[2], type(connection.transport).__module__)
    message.ack()
"""
    assert run(script, url) == (0, "add reliq.transports.redis", "")
    assert_balanced(url)


def test_the_celery_command_needs_no_import(redis_server, redis_url):
    """`celery -b reliq://` works on the command line without an application."""
    url = redis_server.url("reliq")
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-b", url, "inspect", "ping", "--timeout", "0.5"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "No nodes replied" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_kombu_needs_an_import(redis_server, redis_url):
    """Plain Kombu knows reliq:// only after the import of reliq."""
    url = redis_server.url("reliq")
    script = """
import sys
from kombu import Connection
try:
    Connection(sys.argv[1])
except KeyError as exc:
    print("unknown:", "reliq" in str(exc))
import reliq
with Connection(sys.argv[1]) as connection:
    connection.connect()
    print("connected")
"""
    assert run(script, url) == (0, "unknown: True\nconnected", "")


def test_a_publisher_imports_what_it_needs(redis_url):
    """Connecting and publishing add at most 99 modules and redis-py's to a Celery process.

    redis-py imports asyncio, and redis:// adds both, too. A publisher imports no code for
    consumers, operators, batches, clusters or databases.
    """
    script = """
import sys
for name in ("opentelemetry", "psutil", "cryptography"):  # redis-py takes them where they are
    sys.modules[name] = None
from celery import Celery
from kombu import Queue
app = Celery(broker=sys.argv[1])
app.amqp, app.tasks
before = set(sys.modules)
import reliq
with app.connection_for_write() as connection, connection.Producer() as producer:
    producer.publish("x", routing_key="q", exchange="", declare=[Queue("q")])
added = set(sys.modules) - before
own = [name for name in added if name.partition(".")[0] not in ("asyncio", "redis")]
print(len(own), sorted(own))
"""
    code, out, err = run(script, redis_url)
    assert (0, "") == (code, err)
    number, _, names = out.partition(" ")
    assert int(number) <= 99, names
    for name in ("admin", "batches.batch", "cli'", "web", "consumer.duties", "client.cluster"):
        assert f"'reliq.{name}" not in names
    assert "'sqlite3" not in names


@pytest.mark.slow
def test_import_before_kombu_and_after():
    """The import of reliq works before and after Kombu's serialisation, and a repeated one too."""
    for script in (
        "import reliq, kombu.serialization",
        "import kombu.serialization, reliq",
        "import reliq; reliq.register(); import celery",
        "from kombu import Producer; import reliq.plugin",
    ):
        check = (
            "; from kombu.transport import get_transport_cls"
            "; from kombu.serialization import registry"
            "; print(get_transport_cls('reliq').driver_name, 'reliq' in registry.name_to_type)"
        )
        assert run(script + check) == (0, "reliq True", "")


LOADING = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import kombu, kombu.serialization, celery
    kombu.Connection("memory://").connect()
    ours = [str(item.message) for item in caught if "reliq" in str(item.message)]
print(ours)
def why(work):
    try:
        work()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
print(why(lambda: kombu.Connection("reliq://localhost").connect()))
print(why(lambda: kombu.serialization.dumps(1, serializer="reliq")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["msgpack", "hiredis", "blinker"])
def test_what_reliq_needs_is_broken(tmp_path, package):
    """A broken dependency of reliq causes at most a warning for users of another broker."""
    (tmp_path / f"{package}.py").write_text("raise ImportError('it is broken')\n")
    code, output, errors = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + LOADING)
    assert (0, "") == (code, errors)
    warned, of_url, of_serializer = output.splitlines()
    assert "ImportError: it is broken" == of_url
    if package == "msgpack":  # the serializer, which Kombu loads, needs it too
        assert "EncodeError: reliq cannot be loaded: it is broken" == of_serializer
        assert 1 == len(literal_eval(warned))
        assert "ImportError: it is broken" in warned
    else:
        assert ("[]", "None") == (warned, of_serializer)


# -- TLS


@pytest.fixture
def tls_server(redis_factory, certificates):
    """Return a server with a certificate of the test's own CA."""
    return redis_factory(tls=certificates)


def test_tls_with_the_right_ca(tls_server):
    """reliqs:// connects if the certificate is signed by the CA of the URL."""
    url = tls_server.url("reliqs")
    with Connection(url) as connection:
        assert carries(connection)
    assert_balanced(url)


@pytest.mark.parametrize(
    "name", ["ca_certs", "ssl_ca_certs"], ids=["as Celery spells it", "as redis-py spells it"]
)
def test_tls_by_options(tls_server, certificates, name):
    """The CA can come from the ssl mapping, which is broker_use_ssl in Celery."""
    url = tls_server.url("reliqs").partition("?")[0]
    with Connection(url, ssl={name: str(certificates.ca)}) as connection:
        assert carries(connection)


def refused(url, **arguments):
    """Return the error with which *url* is refused."""
    with Connection(url, **arguments) as connection, pytest.raises(BrokerUnavailable) as caught:
        connection.transport.establish_connection()
    return str(caught.value)


def test_tls_with_the_wrong_ca(tls_server, certificates):
    """A certificate of another CA is refused, with the reason."""
    url = tls_server.url("reliqs", ssl_ca_certs=str(certificates.wrong_ca))
    assert "CERTIFICATE_VERIFY_FAILED" in refused(url)
    with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        Inspector(url)


def test_tls_verifies_by_default(tls_server):
    """Without TLS options the certificate has to be trusted by the system."""
    url = tls_server.url("reliqs").partition("?")[0]
    assert "CERTIFICATE_VERIFY_FAILED" in refused(url)
    assert "CERTIFICATE_VERIFY_FAILED" in refused(url, ssl=True)


def test_tls_for_another_host(redis_factory, certificates):
    """A certificate for another host is refused, unless the check is disabled."""
    elsewhere = certificates._replace(
        server_cert=certificates.other_host_cert, server_key=certificates.other_host_key
    )
    server = redis_factory(tls=elsewhere)
    url = server.url("reliqs")
    assert "CERTIFICATE_VERIFY_FAILED" in refused(url)
    with Connection(f"{url}&ssl_check_hostname=false") as connection:
        assert carries(connection)
    with Inspector(f"{url}&ssl_check_hostname=false") as inspector:
        assert inspector.queues() == ["q"]


def test_tls_options_belong_to_their_connection(tls_server):
    """A connection that trusts any certificate does not weaken the checks of another one."""
    url = tls_server.url("reliqs").partition("?")[0]
    with Connection(f"{url}?ssl_cert_reqs=none") as careless:
        careless.connect()
        assert "CERTIFICATE_VERIFY_FAILED" in refused(url)
        assert carries(careless)


@pytest.mark.parametrize("value", ["none", "CERT_NONE"])
def test_tls_without_verification(tls_server, value, caplog):
    """ssl_cert_reqs=none accepts any certificate, with one warning and a finding of the doctor."""
    tls._warn.cache_clear()
    url = f"{tls_server.url('reliqs').partition('?')[0]}?ssl_cert_reqs={value}"
    with Connection(url) as connection:
        assert carries(connection)
    with Inspector(url) as inspector:
        assert inspector.queues() == ["q"]
        (found,) = (item for item in inspector.doctor() if item.check == "tls")
    assert "not verified" in found.message
    assert 1 == sum("not verified" in record.getMessage() for record in caplog.records)
    with Inspector(tls_server.url("reliqs")) as inspector:
        assert "tls" not in {item.check for item in inspector.doctor()}


def test_tls_without_verification_by_option(tls_server):
    """ssl={"cert_reqs": CERT_NONE} accepts any certificate."""
    url = tls_server.url("reliqs").partition("?")[0]
    with Connection(url, ssl={"cert_reqs": ssl.CERT_NONE}) as connection:
        assert carries(connection)


def test_a_certificate_that_is_being_replaced(tls_server, certificates, tmp_path):
    """A CA file that is missing for a moment counts as an outage: a worker retries and connects."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificates.ca.read_bytes())
    with Connection(tls_server.url("reliqs", ssl_ca_certs=str(ca))) as connection:
        transport = connection.transport
        ca.unlink()
        with pytest.raises(BrokerUnavailable, match=r"ssl_ca_certs to be an existing file"):
            transport.establish_connection()
        ca.write_bytes(certificates.ca.read_bytes())
        assert carries(connection)


def test_plain_text_to_a_tls_port(tls_server):
    """reliq:// to a TLS port fails within the timeout, as a connection error."""
    url = tls_server.url("reliqs").partition("?")[0].replace("reliqs://", "reliq://")
    refused(url, transport_options={"socket_timeout": 2, "socket_connect_timeout": 2})


def test_a_misspelled_tls_option(tls_server):
    """An unknown ssl option is refused with the nearest known one."""
    url = tls_server.url("reliqs").partition("?")[0]
    with (
        Connection(url, ssl={"ca_cert": "x"}) as connection,
        pytest.raises(ConfigurationError, match="ssl_ca_certs"),
    ):
        connection.connect()


# -- Unix sockets and logins


def test_unix_socket(redis_factory):
    """reliq-unix:// carries messages over a Unix socket."""
    url = redis_factory(unix_socket=True).url("reliq-unix")
    with Connection(url) as connection:
        assert carries(connection)
    with Inspector(url) as inspector:
        assert inspector.queues() == ["q"]
        assert [result.balanced for result in inspector.audit()] == [True]


def test_unix_socket_with_a_password(redis_factory):
    """The password of a Unix socket comes from the options, and a wrong one is not shown."""
    server = redis_factory(unix_socket=True, password="geheim")
    url = server.url("reliq-unix")
    with Connection(url, transport_options={"password": "geheim"}) as connection:
        assert carries(connection)
    text = refused(url, transport_options={"password": "falsch-123"})
    assert "falsch-123" not in text
    assert str(server.unix_path) in text


def test_a_missing_unix_socket(tmp_path):
    """A missing socket is an error with its name."""
    assert "nowhere.sock" in refused(f"reliq-unix://{tmp_path}/nowhere.sock")


RULE = ["on", ">pass: w%rd", "~reliq:*", "&*", "+@all"]


@pytest.fixture
def acl_server(fresh_redis):
    """Return a server with a user for the tests, and without the default user's rights."""
    client = fresh_redis.client()
    client.execute_command("ACL", "SETUSER", "worker", *RULE)
    client.execute_command("ACL", "SETUSER", "operator", "on", ">operator", "~*", "&*", "+@all")
    client.close()
    return fresh_redis


def test_acl_user(acl_server):
    """An ACL user logs in with the name and the password of the URL."""
    url = acl_server.url("reliq").replace("://", f"://worker:{quote('pass: w%rd', safe='')}@")
    with Connection(url) as connection:
        assert carries(connection)
    assert_balanced(url)


@pytest.mark.parametrize("login", ["worker:wr%C3%B6ng-1", "nobody:wr%C3%B6ng-1"])
def test_acl_wrong_login(acl_server, login):
    """The error for a wrong login names the broker, but not the password."""
    url = acl_server.url("reliq").replace("://", f"://{login}@")
    with Connection(url) as connection, pytest.raises(BrokerUnavailable) as caught:
        connection.transport.establish_connection()
    assert str(acl_server.port) in str(caught.value)
    assert "login" in str(caught.value)
    for secret in ("wr%C3%B6ng-1", "wröng-1"):
        assert secret not in shown(caught.value)
