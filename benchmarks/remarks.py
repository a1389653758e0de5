"""The reason why a figure misses its target, by row key; printed only where it does."""

from __future__ import annotations

from benchmarks.restore import SIZES

_ACKS = (
    "Each ack is written to the socket at once, with one system call per message, so that a killed "
    "process loses no ack. Delayed acks would be faster, but break that promise."
)
_SERVER = (
    "Each message costs Redis about 8 µs in the script: two reads, three removals and two inserts. "
    "Redis runs one script at a time, and here shares two cores with four other processes. Without "
    "the bystander and the observer, the rate is 90,000 messages/s."
)
_INTERRUPTED = (
    "On a quiet machine, nine in ten calls take less than 2 ms. The longest call was interrupted: "
    "Redis, the consumer, the bystander's two processes and the observer share two cores. "
    "Halving the messages per call does not shorten the longest call."
)
_NEIGHBOURS = (
    "The bystander's processes wait for a processor, because Redis and the restoring consumer use "
    "both cores."
)
_ONE_SAMPLE = (
    "This is the ratio of two samples, and samples on this machine vary by a quarter. Four earlier "
    "runs gave 63 to 106 % (publish) and 73 to 109 % (consume). These runs do not show whether a "
    "large backlog reduces the rate."
)
_MOST_OF_THREE = (
    "The busiest of three nodes has three of eight partitions, so 2.67x is the maximum."
)
WHY_SHORT: dict[str, str] = {
    "publish-named": (
        "Kombu makes two round trips over loopback, and reliq makes one for a confirmed publish. "
        "reliq can therefore save only one round trip and client time (see the raw limits)."
    ),
    "publish-anonymous": (
        "reliq and Kombu both make one round trip, so reliq can save only client time (see the raw "
        "limits). Its script also numbers the publish, updates the ledger and notifies a consumer. "
        "This takes some 30 to 45 µs in the server."
    ),
    "celery-solo": (
        "In a solo worker, the task, Celery's bookkeeping and the transport share one thread. Most "
        "of the processor time per task (see CPU) is Celery's."
    ),
    "restore-1000": (
        "1,000 messages return within five script calls. Much of the time is spent on round "
        "trips between the calls, and on the polling interval of the observer "
        "([Method](#method))."
    ),
    "restore-10000": _SERVER,
    "restore-100000": _SERVER,
    **{f"restore-{size}-longest-call": _INTERRUPTED for size in SIZES},
    **{f"restore-{size}-bystander-growth": _NEIGHBOURS for size in SIZES},
    **{f"growth-delayed-{verb}-kept": _ONE_SAMPLE for verb in ("publish", "consume")},
    **{
        f"cluster-{queues}-publish-client": (
            "The client computes the slot of each command and looks up its node; with partitions, "
            "it also selects one. The samples vary widely."
        )
        for queues in ("1-queue", "8-queues", "8-partitions")
    },
    "cluster-8-partitions-capacity": (
        f"{_MOST_OF_THREE} A server that handles one message at a time sleeps in between, the more "
        "the less work it has."
    ),
    "cluster-8-partitions-bulk-capacity": (
        f"{_MOST_OF_THREE} Spread over partitions, each script call handles fewer messages."
    ),
    "cluster-idle-20-commands": (
        "The worker waits for eight slots, and queries the queues of the others every six seconds."
    ),
    "cluster-idle-20-sockets": (
        "A worker has up to two connections to each node, [one for calls and one for "
        "posts](decisions.md#calls-and-posts), and at most eight for notifications. The target "
        "assumes one connection to each of the three nodes, and these eight."
    ),
    "cluster-idle-1-commands": (
        "The worker waits for two keys in two slots, its queue's and its mailbox's. It renews each "
        "wait every 15 seconds. Its other commands are those that it sends to one server."
    ),
    "consume-64": _ACKS,
    "consume-4": f"{_ACKS} With this prefetch count, a reserve call fetches only two messages.",
}
