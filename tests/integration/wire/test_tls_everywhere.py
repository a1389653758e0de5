"""TLS requested by a URL applies to every part of reliq that gets the URL."""

from __future__ import annotations

import hashlib
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from inspect import signature
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID
from kombu import Connection
from redis.connection import SSLConnection

import reliq
from reliq import BrokerUnavailable, ConfigurationError
from reliq.admin import Inspector
from reliq.cli import main
from reliq.client.urls import address_of, read
from reliq.metrics import Collector
from reliq.migration.kombu_url import connect_kombu
from reliq.migration.migrate import Migration
from reliq.options import Options
from tests.integration.kombu_client import declare, publish
from tests.integration.process import test_plugging_in
from tests.support.audits import assert_balanced
from tests.support.commands import RELIQ, data, environment, run

PASSWORD = "geheim-123"
OCSP = (
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
)
HANDSHAKE = 0x16  # the first byte of TLS; a command begins with "*"


@pytest.fixture
def tls_server(redis_factory, certificates):
    """Return a server with a password and a certificate of the test's own CA."""
    return redis_factory(tls=certificates, password=PASSWORD)


@pytest.fixture(params=["reliq", "reliqs"])
def tls_url(request, tls_server):
    """Return the server's URL: with the TLS scheme, and with a TLS option in a plain one."""
    return tls_server.url("reliqs").replace("reliqs://", f"{request.param}://")


@pytest.mark.slow
def test_everybody_speaks_tls(tls_server, tls_url):
    """Transport, Inspector, commands, exporter, once, move and migrate use TLS."""
    with Connection(tls_url) as connection:
        declare(connection, "orders")
        publish(connection, "orders", 1, 2)
    with Inspector(tls_url) as inspector:
        assert 2 == inspector.status("orders").ready
        assert inspector.broker.startswith("reliqs://")
    (row,) = data(tls_url, "status", "--interval", 0)["queues"]
    assert ("orders", 2) == (row["queue"], row["ready"])
    collector = Collector(tls_url)
    with closing(collector):
        up = next(family for family in collector.collect() if family.name == "reliq_up")
        assert [1] == [sample.value for sample in up.samples]
    with reliq.once("x", ttl=60, url=tls_url) as first:
        assert first
    plain = f"reliq://:{PASSWORD}@127.0.0.1:{tls_server.port}/1"
    for source, target in ((tls_url, plain), (plain, tls_url)):
        done = run(None, "move", "orders", "--from", source, "--to", target)
        assert 0 == done.returncode, done.stderr
    kombu = tls_url.replace("reliq", "redis", 1)
    with Migration(tls_url, kombu) as migration:
        assert [2] == [step.moved for step in migration.run("orders")]
    with Migration(kombu, tls_url) as migration:
        assert [2] == [step.moved for step in migration.run("orders")]
    assert_balanced(tls_url)


@pytest.mark.slow
def test_an_exporter_process(tls_url):
    """`reliq exporter` uses TLS."""
    command = [*RELIQ, "exporter", "--port", "0"]
    with subprocess.Popen(
        command, env=environment(tls_url), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            with urlopen(process.stdout.readline().split()[-1], timeout=30) as reply:
                assert 'reliq_up{broker="reliqs://127.0.0.1' in reply.read().decode()
        finally:
            process.terminate()
            process.wait(30)


class Ear:
    """A port that records the first bytes of each connection and closes it."""

    def __init__(self):
        self.heard = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self.heard.append(connection.recv(4096))

    def close(self):
        """Close the port."""
        self._server.close()


@pytest.fixture
def ear():
    """Return a port that records the first bytes of each connection."""
    listening = Ear()
    yield listening
    listening.close()


@pytest.mark.parametrize("query", ["ssl_cert_reqs=none", "ssl=true", "ssl_ciphers=HIGH"])
@pytest.mark.parametrize("scheme", ["reliq", "reliqs", "reliq-sentinel", "redis"])
def test_no_password_leaves_in_plain_text(ear, scheme, query):
    """Every connection for a URL with a TLS option begins with a handshake."""
    url = f"{scheme}://me:{PASSWORD}@127.0.0.1:{ear.port}/0?{query}"
    options = {"master_name": "m", "sentinel_password": PASSWORD}
    if scheme == "redis":
        with pytest.raises(reliq.BrokerUnavailable):
            connect_kombu(url, None, "me")
    else:
        connection = Connection(url, transport_options=options)
        with connection, pytest.raises(reliq.BrokerUnavailable):
            connection.transport.establish_connection()
        with pytest.raises(reliq.BrokerUnavailable):
            Inspector(url, options)
        for command in ("status", "doctor"):
            words = [command, "--url", url, "--master-name", "m"]
            assert 2 == CliRunner().invoke(main, words).exit_code
    assert ear.heard
    assert {HANDSHAKE} == {said[0] for said in ear.heard}
    assert PASSWORD.encode() not in b"".join(ear.heard)


def wrong(tls_server, **options):
    """Return the error of the transport and the Inspector for TLS options."""
    url = tls_server.url("reliqs").partition("?")[0]
    with Connection(url, ssl=options) as connection, pytest.raises(ConfigurationError) as one:
        connection.transport.establish_connection()
    query = "&".join(f"ssl_{name}={value}" for name, value in options.items())
    with pytest.raises(ConfigurationError) as other:
        Inspector(f"{url}?{query}")
    assert str(one.value) == str(other.value)
    return str(one.value)


def test_a_wrong_option_is_named_with_its_value(tls_server, certificates, tmp_path):
    """A wrong TLS option is reported with its value before any connection, the same by all."""
    nowhere = tmp_path / "nowhere.pem"
    for name in ("ca_certs", "certfile", "keyfile", "ca_path"):
        said = wrong(tls_server, **{name: str(nowhere)})
        assert f"ssl_{name}" in said
        assert str(nowhere) in said
    none = tmp_path / "none.pem"
    none.write_text("no certificate")
    said = wrong(tls_server, ca_certs=str(none))
    assert "ssl_ca_certs" in said
    assert str(none) in said
    said = wrong(tls_server, certfile=str(certificates.client_cert), keyfile=str(none))
    assert "ssl_keyfile" in said
    assert "ssl_min_version to be one of TLSv1.2, TLSv1.3, got: '9'" in wrong(
        tls_server, min_version="9"
    )
    assert "ssl_ciphers" in wrong(tls_server, ciphers="NO-SUCH")


@pytest.mark.parametrize("version", ["1.2", "TLSv1.3", "TLSv1_2"])
def test_a_version_that_is_there(tls_server, version):
    """Each spelling of a TLS version is accepted."""
    url = f"{tls_server.url('reliqs')}&ssl_min_version={version}"
    with Inspector(url) as inspector:
        assert [] == inspector.queues()


def secured(server, **options):
    """Return the TLS context of a connection, which has logged in."""
    connection = address_of(replace(read(server.url("reliqs"), ["reliqs"]), tls=options)).connect(
        Options(), "test"
    )
    connection.close()
    return connection.sock.context


def hashed_folder(folder, ca):
    """Put *ca* into *folder* under the name that OpenSSL looks for; return the folder."""
    name = x509.load_pem_x509_certificate(ca.read_bytes()).subject
    (part,) = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    lower = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, part.value.lower())])
    digest = hashlib.sha1(lower.public_bytes()[2:]).digest()
    (folder / f"{int.from_bytes(digest[:4], 'little'):08x}.0").write_bytes(ca.read_bytes())
    return str(folder)


def test_each_way_to_name_the_authority(tls_server, certificates, tmp_path):
    """The CA is a file, a folder or text, under the names of Kombu and redis-py."""
    for options in (
        {"ca_certs": str(certificates.ca)},
        {"ssl_ca_data": certificates.ca.read_text()},
        {"ca_path": hashed_folder(tmp_path, certificates.ca)},
    ):
        assert secured(tls_server, **options)
    with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        secured(tls_server, ca_data=certificates.wrong_ca.read_text())


def test_effect_of_verify_flags(tls_server, certificates):
    """A flag that is included demands what is missing here, a CRL, unless it is excluded."""
    ca, flags = str(certificates.ca), [ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF]
    with pytest.raises(BrokerUnavailable, match="unable to get certificate CRL"):
        secured(tls_server, ca_certs=ca, include_verify_flags=flags)
    both = {"include_verify_flags": flags, "exclude_verify_flags": flags}
    assert secured(tls_server, ca_certs=ca, **both)
    for name in both:
        with pytest.raises(ConfigurationError, match=f"ssl_{name} cannot be used"):
            secured(tls_server, ca_certs=ca, **{name: "VERIFY_X509_STRICT"})


def test_effect_of_versions_and_ciphers(tls_server, certificates):
    """The context has the lowest version and only the ciphers that are named."""
    cipher, ca = "ECDHE-ECDSA-AES128-GCM-SHA256", str(certificates.ca)
    context = secured(tls_server, ca_certs=ca, min_version="1.3", ciphers=cipher)
    assert ssl.TLSVersion.TLSv1_3 == context.minimum_version
    names = {one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"}
    assert {cipher} == names


def test_effect_of_a_client_certificate(tls_server, certificates, tmp_path):
    """A key with a password is used with this password, and refused with another."""
    key = serialization.load_pem_private_key(certificates.client_key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    form, way = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = serialization.BestAvailableEncryption(b"hush")
    locked.write_bytes(key.private_bytes(form, way, secret))
    options = {"ca_certs": str(certificates.ca), "certfile": str(certificates.client_cert)}
    options["keyfile"] = str(locked)
    assert secured(tls_server, **options, password="hush")
    with pytest.raises(ConfigurationError, match="ssl_password cannot be used") as caught:
        secured(tls_server, **options, password="wrong-hush")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("value", [True, "true"])
def test_the_revocation_of_certificates_is_not_queried(tls_server, value):
    """redis-py's OCSP options are refused: each of its queries would wait without a limit."""
    for name in OCSP:
        with pytest.raises(ConfigurationError, match=f"{name} is not supported: .* time limit"):
            secured(tls_server, **{name: value})
    with pytest.raises(ConfigurationError, match="ssl_validate_ocsp is not supported"):
        Inspector(f"{tls_server.url('reliqs')}&ssl_validate_ocsp=true")


def test_each_option_of_redis_py_has_a_test():
    """Each TLS option of the installed redis-py is tested in this file or refused."""
    known = {name for name in signature(SSLConnection).parameters if name.startswith("ssl_")}
    text = Path(__file__).read_text("utf-8") + Path(test_plugging_in.__file__).read_text("utf-8")
    assert [] == [name for name in known - {*OCSP} if name.removeprefix("ssl_") not in text]


AN_OPEN_CONNECTION = """
import sys
from kombu import Connection

import reliq

connection = Connection(sys.argv[1])
connection.default_channel.queue_declare("orders")
"""


def test_a_process_exits_with_an_open_connection(redis_url, tls_url):
    """A process exits without a ResourceWarning with an open connection, over TCP and TLS."""
    for url in (redis_url, tls_url):
        command = [sys.executable, "-W", "error", "-c", AN_OPEN_CONNECTION, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (0, "") == (done.returncode, done.stderr)
