"""A session makes its parts at the first access, once."""

import pytest

from reliq.consumer import sessions
from reliq.consumer.sessions import SESSIONS, Endpoint
from reliq.options import parse


class User:
    """Something that uses a session."""


@pytest.fixture
def session():
    """Return the session of a broker to which nothing connects."""
    user = User()
    endpoint = Endpoint(key="test", options=parse({}), open_store=lambda _: None, address=None)
    session = SESSIONS.session_for(endpoint, user)
    yield session
    session.leave(user)
    assert "test" not in SESSIONS.by_key


def test_a_session_without_leases(session):
    """A session over which nothing was declared, taken or lost has no parts and is idle."""
    assert session.idle
    assert not session.in_hand
    assert not session.consumed
    assert not session.holds


def test_the_first_parts_are_kept(session, monkeypatch):
    """A signal handler that needs the parts while they are made leaves one set of them."""
    seen = []
    made = sessions.Registration

    def interrupted(*arguments):
        monkeypatch.setattr(sessions, "Registration", made)
        seen.append(session.leases)
        return made(*arguments)

    monkeypatch.setattr(sessions, "Registration", interrupted)
    session.registration.subscribe("q", no_ack=False)
    assert [session.leases] == seen
    assert session.consumed
    assert session.holds
