"""The classes of a server's error replies, and the places that know their codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reliq.client.cluster import requests
from reliq.client.error_replies import CODES, class_of, code_of, translate_reply
from reliq.errors import BrokerRefused, BrokerUnavailable

PACKAGE = Path(__file__).parents[2] / "reliq"
# It follows redirections and gives advice for a cluster; its codes are compared below.
OWN = {"client/error_replies.py", "client/cluster/requests.py"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", "OOM"),
        ("-READONLY You can't write against a read only replica.", "READONLY"),
        ("WRONGTYPE Operation against a key script: 5d, on @user_script:7.", "WRONGTYPE"),
        ("ERR Error running script (call to f_5): @user_script:7: -OOM command not", "OOM"),
        ("ERR Error running script (call to f_5): @user_script: 7: WRONGTYPE Op", "WRONGTYPE"),
        ("NOPERM this user has no permissions: BUSY", "NOPERM"),
        ("BUSYKEY Target key name already exists.", ""),
        ("ERR user_script:1: boom", ""),
    ],
)
def test_the_code_of_a_reply(text, code):
    """The code is the first word, or that of the command in a script of Redis 6.2."""
    assert code == code_of(text)


@pytest.mark.parametrize("code", [*CODES, "ERR max number of clients reached", "ERR other"])
def test_the_error_of_a_reply(code):
    """The error of a reply has the text, whether it passes, and the kind that Kombu expects."""
    found, error = class_of(code), translate_reply(code, "broker")
    assert (code, found.passes) == (error.reply, error.passes)
    assert isinstance(error, BrokerUnavailable if found.reconnects else BrokerRefused)
    assert found.passes or not found.reconnects
    assert found.advice in str(error)


def test_kombu_does_not_retry_these():
    """Full memory, a wrong type and a missing right are no connection errors."""
    assert {False} == {CODES[code].reconnects for code in ("OOM", "WRONGTYPE", "NOPERM")}


def test_a_cluster_knows_no_other_codes():
    """Each code that a cluster retries elsewhere passes."""
    assert {True} == {CODES[code].passes for code in requests._BY_CODE}


def test_the_codes_stand_in_one_place():
    """No other module looks for codes in the text of an error."""
    codes = re.compile(rf"""["'](?:{"|".join(CODES)})\b[^"']*["'] in """)
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if codes.search(path.read_text("utf-8"))
    }
    assert set() == found - OWN
