"""Why a figure falls short of its target, by row key: printed only when it does."""

from __future__ import annotations

WHY_SHORT: dict[str, str] = {
    "publish-named": (
        "a confirmed publish is one round trip, which no client can go below; Kombu makes two "
        "over the same loopback, so only its client's time and one trip are there to be saved"
    ),
    "publish-anonymous": (
        "both make exactly one round trip; ours runs a script that also numbers the publish, "
        "keeps the ledger and rings the bell, about 20 µs in the server"
    ),
    "consume-64": (
        "each ack is written to the socket at once, one system call a message, so that a killed "
        "process loses no ack; holding acks back would reach the target and break that promise"
    ),
    "consume-4": ("the same write for each ack, and a reserve for every two messages"),
}
