"""The server that the tests run on stays the same one, whatever a test does to the environment."""

from __future__ import annotations

from tests.support import servers


def test_a_changed_environment_chooses_no_other_server(monkeypatch, tmp_path):
    """The server is chosen with PATH and RELIQ_TEST_REDIS as they were before the tests."""
    chosen = servers.redis_binary()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("RELIQ_TEST_REDIS", "nothing")

    servers.redis_binary.cache_clear()

    assert chosen == servers.redis_binary()


def test_the_server_of_a_virtual_environment_is_not_that_of_path(monkeypatch, tmp_path):
    """A server in any virtual environment on PATH is a wheel's, and is passed over."""
    system, environment = tmp_path / "usr/bin", tmp_path / "venv/bin"
    for folder in (system, environment):
        folder.mkdir(parents=True)
        (folder / "redis-server").write_text("#!/bin/sh\n")
        (folder / "redis-server").chmod(0o755)
    (environment.parent / "pyvenv.cfg").touch()
    monkeypatch.setattr(servers, "_PATH", [str(environment), str(system)])

    assert str(system / "redis-server") == servers._on_path()
