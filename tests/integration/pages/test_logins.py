"""The examples of logins that change, with stand-ins for the libraries of the clouds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.audits import assert_balanced

PAGE = Path(__file__).resolve().parents[3] / "docs" / "managed-redis.md"
EXAMPLES = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
SIGNED = "my-cache/?Action=connect&User=worker&X-Amz-Expires=900&X-Amz-Signature=eu-west-1"
AWS = {
    "botocore.session": """
class Session:
    def get_credentials(self):
        return "keys"
""",
    "botocore.awsrequest": """
class AWSRequest:
    def __init__(self, method, url, params):
        self.url, self.params = url, params
""",
    "botocore.auth": """
class SigV4QueryAuth:
    def __init__(self, credentials, service_name, region_name, expires):
        self.signed = {"X-Amz-Expires": expires, "X-Amz-Signature": region_name}

    def add_auth(self, request):
        query = {**request.params, **self.signed}
        request.url += "?" + "&".join(f"{name}={value}" for name, value in query.items())
""",
}
AZURE = {
    "redis_entraid.cred_provider": """
from redis.credentials import StreamingCredentialProvider

class Entra(StreamingCredentialProvider):
    def get_credentials(self):
        return "worker", "entra-token"

    def on_next(self, callback):
        pass

    def on_error(self, callback):
        pass

    def is_streaming(self):
        return True

def create_from_default_azure_credential(scopes):
    return Entra()
""",
}
GOOGLE = {
    "google.auth": """
class Credentials:
    token = None

    def refresh(self, request):
        self.token = "google-token"

def default(scopes):
    return Credentials(), "project"
""",
    "google.auth.transport.requests": "class Request: pass",
}
USED = """
import sys
import reliq
from kombu import Connection

options = {"credential_provider": "shop_login:provider"}
with Connection(sys.argv[1], transport_options=options) as connection:
    with connection.SimpleQueue("q") as queue:
        queue.put("x")
        message = queue.get(timeout=10)
        message.ack()
        print(message.payload)
"""


def install(folder, modules):
    """Write *modules* into *folder*, with the packages that they are in."""
    for name, text in modules.items():
        place = folder.joinpath(*name.split("."))
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(text)


@pytest.mark.parametrize(
    ("example", "library", "user", "token"),
    [
        (0, AWS, "worker", SIGNED),
        (1, AZURE, "worker", "entra-token"),
        (2, GOOGLE, "default", "google-token"),
    ],
    ids=["aws", "azure", "google"],
)
def test_an_example_logs_in(redis_factory, tmp_path, example, library, user, token):
    """The lines of each provider's section publish, consume and ack with its token."""
    server = redis_factory()
    url, admin = server.url("reliq"), server.client()
    rules = {"keys": "*", "channels": "*", "categories": ["+@all"]}
    admin.acl_setuser("auditor", enabled=True, passwords=["+auditor"], **rules)
    install(tmp_path, library)
    (tmp_path / "shop_login.py").write_text(EXAMPLES[example])
    admin.acl_setuser(user, enabled=True, reset_passwords=True, passwords=[f"+{token}"], **rules)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", USED, url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert (0, "x\n", "") == (done.returncode, done.stdout, done.stderr)
    assert len(EXAMPLES) == 3
    assert_balanced(url.replace("//", "//auditor:auditor@"))
