"""`reliq doctor` for a user with missing rights, and after an interrupted migration."""

import pytest

from reliq.admin import Inspector
from reliq.migration.migrate import Migration
from tests.integration.kombu_client import declare
from tests.support.commands import data


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ("~reliq:* +@all -time", "may not use TIME"),
        ("~reliq:* +@all -@hash", "queues and consumers are unreadable"),
        ("~shop:* +@all", "queues and consumers are unreadable"),
    ],
)
def test_what_a_user_may_not_do_is_found(client, redis_server, rights, words):
    """Each missing right is an error with a remedy; the other checks still run."""
    declare(client.connect(), "orders")
    raw = redis_server.client()
    raw.execute_command("ACL", "SETUSER", "some", "reset", "on", ">secret", *rights.split())
    try:
        rows = data(client.url.replace("://", "://some:secret@"), "doctor", code=1)
    finally:
        raw.execute_command("ACL", "DELUSER", "some")
    wrong = [row for row in rows if row["severity"] == "error" and words in row["message"]]
    assert wrong, rows
    assert all("reliq acl" in row["remedy"] for row in wrong)
    assert {"version", "memory", "clients"} <= {row["check"] for row in rows}


def test_what_a_migration_has_half_way_is_ours(client, redis_server):
    """The keys of an interrupted migration are not foreign: deleting them would lose messages."""
    raw = redis_server.client()
    for number in range(3):
        raw.lpush("q", f"message {number}")
    with Inspector(client.url) as inspector:
        with Migration(redis_server.url("redis"), client.url) as migration:
            next(migration.run("q"))
            raw.lpush("q", "left half way")
            migration._kombu.take("q", migration._target, 0)
        (found,) = [item for item in inspector.doctor() if item.check == "keys"]
        assert "ok" == found.severity, found.message
        with Migration(redis_server.url("redis"), client.url) as migration:
            assert [1] == [step.moved for step in migration.run("q")]
