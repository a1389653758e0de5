"""What the limit is where a figure falls short of its target, by row key: printed only then."""

from __future__ import annotations

from benchmarks.restore import SIZES

_ROUND_TRIP = (
    "a confirmed publish is one round trip, which no client can go below (the table of raw "
    "limits says how close it is)"
)
_ACKS = (
    "each ack is written to the socket at once, one system call a message, so that a killed "
    "process loses no ack; holding acks back would be faster and break that promise"
)
_SERVER = (
    "each message costs Redis about 8 µs in the script (two reads, three removals, two inserts), "
    "Redis runs one script at a time, and here it shares two cores with four other processes; "
    "without the bystander and the watcher it is 90 000 a second"
)
_INTERRUPTED = (
    "with nothing beside it nine in ten calls take less than 2 ms; the longest was interrupted: "
    "two cores are shared by Redis, the consumer, the bystander's two processes and whoever "
    "measures. With half as many messages a call the longest is as long"
)
_NEIGHBOURS = (
    "the same two cores: the bystander's own processes wait for a processor while Redis and "
    "the consumer that restores use both"
)
_ONE_SAMPLE = (
    "the ratio of two samples, and on this machine samples vary by a quarter: four runs had 63 to "
    "106 % (publish) and 73 to 109 % (consume); whether the last step costs anything is open"
)
WHY_SHORT: dict[str, str] = {
    "publish-named": (
        f"{_ROUND_TRIP}; Kombu makes two over the same loopback, so only its client's time and "
        "one trip are there to be saved"
    ),
    "publish-anonymous": (
        f"{_ROUND_TRIP}; Kombu makes exactly one too; ours runs a script that also numbers the "
        "publish, keeps the ledger and rings the notification, some 30 to 45 µs in the server"
    ),
    "celery-solo": (
        "in a solo worker the task, Celery's bookkeeping and the transport share one thread; "
        "the processor time of a task (the table of CPU) is Celery's, most of it"
    ),
    "restore-1000": (
        "so few messages are back within five script calls: much of the time is the round trips "
        "between them and the pause until the next look from outside"
    ),
    "restore-10000": _SERVER,
    "restore-100000": _SERVER,
    **{f"restore-{size}-longest-call": _INTERRUPTED for size in SIZES},
    **{f"restore-{size}-bystander-growth": _NEIGHBOURS for size in SIZES},
    **{f"growth-delayed-{verb}-kept": _ONE_SAMPLE for verb in ("publish", "consume")},
    **{
        f"cluster-{queues}-publish-client": (
            "each command's slot is looked up, and over which connection its slot is served is "
            "noted until the reply is there, so that no thread overtakes itself while slots move"
        )
        for queues in ("1-queue", "8-queues", "8-partitions")
    },
    "cluster-8-partitions-capacity": (
        "the busiest of three nodes has three of eight partitions, so 2.67x is the most there can "
        "be; and a server that is asked for one message at a time sleeps in between, the more so "
        "the less there is to do for it"
    ),
    "cluster-8-partitions-bulk-capacity": (
        "the busiest of three nodes has three of eight partitions, so 2.67x is the most there can "
        "be; each step is for fewer messages where they are spread"
    ),
    "cluster-idle-20-commands": (
        "with three nodes six of the slots are waited for at a time, each once in seven seconds"
    ),
    "cluster-idle-1-commands": (
        "a worker waits for two keys in two slots, its queue's and its mailbox's, anew every 15 "
        "seconds; what else it sends is what it sends to one server"
    ),
    "consume-64": _ACKS,
    "consume-4": f"{_ACKS}; and there is a reserve for every two messages",
}
