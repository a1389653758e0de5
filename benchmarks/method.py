"""The introduction and the method of the page."""

from __future__ import annotations

INTRODUCTION = """\
# Benchmarks

This page compares reliq with Kombu's transports for Redis, RabbitMQ, SQLite and folders. One
command measured all of them on one machine, in one run. Each cell is the median of the rounds, with
minimum and maximum in parentheses; a cell without parentheses is the value of one round. A ratio is
reliq's value divided by the other transport's. It is computed for each round, and the table shows
the median. A target for a ratio refers to Kombu's `redis://`, unless it names another transport.

This command writes the page from the JSON file beside it:

```
{command}
```

All figures are from commit {commit}. {sizes}
"""

METHOD = """\
## Method

### All figures

- **Servers.** reliq and Kombu's `redis://` each have a redis-server of their own, with the settings
  below. RabbitMQ is one private node, used through py-amqp. Its classic queues run without
  publisher confirms, as in Kombu; its quorum queues run with confirms. All servers run on this
  machine, and clients connect over loopback. Each sample starts with an empty server.
- **Durability.** RabbitMQ writes persistent messages to disk. Redis without persistence does not.
  To measure Redis with its append-only file, run the command with `--appendfsync everysec`.
- **Order.** Samples alternate: one of each transport in turn, round after round. For the most
  important rates, a small first round is discarded. No other part of the run is active during a
  sample.
- **Programs.** Each measured program is a fresh Python process. The code is the same for all
  transports; only the URL differs. Garbage collection and transport options keep their defaults,
  except `visibility_timeout` where restoring is measured. Slow transports get fewer messages, so
  that all samples take about the same time. Compare the rates, not the times.
- **Checks.** The run fails unless all published messages are stored, all consumed messages are
  acknowledged, each task ran exactly once, and reliq's ledger balances.

### Each section

- **Publish**: a loop of `Producer.publish`, with bodies of 1,000 bytes unless the row names another
  size. A call returns when the message is stored. With `confirm="none"`, and on a classic queue
  without confirms, it returns when the message is written to the socket.
- **Publish as web applications do**: `task.delay()` of a task without a result, in one process. All
  threads share the interpreter's lock and Celery's pool of ten connections. With
  `broker_pool_limit=0`, each task opens and closes a connection.
- **Consume and ack**: a `drain_events` loop, and a `Consumer` whose callback acknowledges. The
  queues are filled beforehand. The measured time includes closing the connection, so that the last
  ack counts. If a row has several consumers, each is a process, and all start together. The time
  runs from the first message that any of them receives to the last.
- **Raw limits**: to publish, one LPUSH of the body and its reply. To consume, one RPOP of as many
  messages as the prefetch count, and one HDEL for each, sent at once without waiting for the reply.
- **Celery**: real workers with Celery's defaults, except that results are ignored. Concurrency is
  the number of cores, and gossip, mingle and heartbeat are on. All tasks are published before the
  first one runs. The time runs from the first task to the last, as workers record it in shared
  memory. Start-up, logs and results do not count. A 1 ms task sleeps for 1 ms.
- **Batches**: a prefork worker with two processes is started first. It does not consume the tasks
  until all of them are published. Chords keep their results in Redis.
- **Latency**: one process publishes, and another consumes. The latency is the time from a message's
  scheduled publish to its callback, on a clock that both processes share. If a slow message delays
  the next one, the latency of both includes the delay. Idle is 100 messages a second. Half load is
  half of the rate that the same two processes reached just before, without a limit; a faster
  transport is therefore measured at a higher rate.
- **Restore**: a consumer reserves all messages and is killed with SIGKILL. When its leases have
  expired, another consumer starts. An observer measures from the first restored message to the
  last. Kombu restores at most 2,000 messages, because more would take minutes; compare the rates.
  The longest command, scripts included, is from Redis' `SLOWLOG`, which here records all commands
  of at least 0.1 ms. The bystander is a pair of processes that exchange 200 messages a second on
  the same Redis, under another key prefix. Its latency is measured just before the restore, and
  from the start of the restore to its end, but for at least a quarter of a second.
- **Kill**: a consumer with default options holds all messages, and a second consumer waits for
  messages. The first is killed with SIGKILL. The times run from the kill to the first and to the
  last delivery to the second consumer.
- **Growth**: publish and consume rates on top of a backlog of messages of 100 bytes. Delayed
  messages are due in an hour. The rate kept is the rate with the largest backlog, relative to the
  rate with 1,000 messages.
- **Memory and traffic**: memory is the growth of `used_memory` for each no-op task, measured once
  while the tasks wait, and once while a consumer holds them. Commands and bytes per task are those
  of one worker with one thread, from publish to ack. Commands are those that `MONITOR` shows,
  without those inside scripts. Idle programs are observed for a minute: a `drain_events(timeout=1)`
  loop, and a worker with `--without-gossip --without-mingle --without-heartbeat`.
- **CPU**: user and system time of the worker's main process while tasks are published and run,
  divided by the number of tasks. The profiles (pyinstrument, prefork) are from separate runs.
- **Embedded broker**: bodies of 300 bytes; otherwise as above.

### Cluster figures

- **Processor time, not rates.** Nodes that share a machine take processor time from each other. The
  tables therefore show processor time per message: of each server in user and system mode (`INFO
  cpu`), and of the client's process. The single server in the tables has the same version and
  settings as the nodes, without the cluster settings.
- **Load.** One program publishes messages of 1,000 bytes to each queue in turn. It waits for each
  message to be stored, or, with `confirm="none"`, does not wait. One consumer with prefetch 64
  reserves and acknowledges them. With eight queues, each lies in a different eighth of the slots.
  The queue in eight partitions is compared with an undivided queue on one server.
- **Capacity** is computed: one second divided by the cost of a publish without waiting, a reserve
  and an ack on the busiest node, or of the same in batches. In this test, a server handles one
  message at a time and sleeps in between. It uses more time for each message than a server under
  load.
- **Idle**: as for one server, over all nodes. With 20 queues, each lies in a different twentieth
  of the slots.
- **Moves**: the slot of a queue moves in the same way as with `redis-cli`, ten keys per call; the
  queue's messages have bodies of 300 bytes. Meanwhile, one program publishes to this queue, and one
  consumes from it. Three others publish to queues on the source, the target and a third node. Each
  makes 100 calls a second. The table shows the longest call during the move, and before it.
"""
