"""The Lua scripts, loaded from the package, and their digests."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple


class Script(NamedTuple):
    """One script: what EVAL sends, and the digest that EVALSHA sends instead."""

    name: str
    text: str
    sha: str


def load(name: str) -> Script:
    """Return the script in ``lua/<name>.lua``."""
    text = (resources.files("reliq.engines.redis") / "lua" / f"{name}.lua").read_text("utf-8")
    # SHA1 names a script in Redis's cache; it protects nothing here.
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ACCEPT = load("accept")
ACK = load("ack")
ATTACH = load("attach")
BIND = load("bind")
BROWSE = load("browse")
CONFIGURE = load("configure")
DEAD_LETTER = load("dead_letter")
DECLARE = load("declare")
DELETE_QUEUE = load("delete_queue")
EXPIRE = load("expire")
HAND_BACK = load("hand_back")
HEARTBEAT = load("heartbeat")
KOMBU_ACCEPT = load("kombu_accept")
KOMBU_TAKE = load("kombu_take")
KOMBU_TAKE_UNACKED = load("kombu_take_unacked")
LEASES_OF = load("leases_of")
LIST_QUEUE = load("list_queue")
LOOK = load("look")
MEASURE = load("measure")
MOVE = load("move")
MOVED = load("moved")
MOVE_OUT = load("move_out")
OLDEST = load("oldest")
ONCE = load("once")
PAUSE = load("pause")
PUBLISH = load("publish")
PURGE = load("purge")
PURGE_DEAD = load("purge_dead")
RELEASE = load("release")
RENEW = load("renew")
REPLAY = load("replay")
RESERVE = load("reserve")
RESTORE_VISIBLE = load("restore_visible")
STATUS = load("status")
SURVEY = load("survey")
TELL_RUNNING = load("tell_running")
UNBOUND = load("unbound")
