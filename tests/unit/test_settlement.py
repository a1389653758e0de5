"""A delivered message ends at one place, which reports the end of its job."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "reliq"
ENDS = re.compile(
    r"\b(?:outbox\.(?:ack|ack_later|owe_acks|send_acks|release|release_later|dead_letter)"
    r"|loop\.ack|reports\.report)\("
)
# By file, the other steps and why they are no ends of their own.
OTHERS = {
    "transports/channel.py": {"loop.ack("},  # the hot path: an ordinary message
    "transports/consume/eventloop.py": {  # sends the acks of a tick
        *("outbox.ack(", "outbox.ack_later(", "outbox.owe_acks(", "outbox.send_acks("),
    },
    "transports/consume/pull.py": {"outbox.release("},  # undelivered messages
    "transports/consume/receiver.py": {"outbox.ack_later("},  # repeats an earlier ack
}


def test_a_message_ends_at_one_place():
    """Only settlement ends delivered messages, and reports the ends of their jobs."""
    found = {
        str(path.relative_to(PACKAGE)): set(ENDS.findall(path.read_text("utf-8")))
        for path in PACKAGE.rglob("*.py")
    }
    del found["transports/consume/settlement.py"]
    assert OTHERS == {name: ends for name, ends in found.items() if ends}
