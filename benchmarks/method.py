"""What the page says of how it is measured."""

from __future__ import annotations

INTRODUCTION = """\
# Benchmarks

reliq beside what a user would pick instead, measured by one command on one machine in one run.
Each cell is the median of the rounds, with the least and the greatest in parentheses; a ratio
is reliq divided by the other, round by round. This page is written by

```
{command}
```

from the JSON file beside it. Every figure is of commit {commit}. {sizes}
"""

METHOD = """\
## How it is measured

- reliq and Kombu's `redis://` have a redis-server each, with the settings below; RabbitMQ is one
  private node, used through py-amqp: classic queues without publisher confirms, as Kombu has
  them, and quorum queues with confirms. All run on this machine and are reached over loopback.
  A server is emptied before each sample. RabbitMQ writes persistent messages to disk, which a
  Redis without persistence does not: `--appendfsync everysec` measures Redis with its log.
- Samples alternate: one of each transport in turn, round after round. The most important rates
  begin with a small round that is thrown away. Nothing else of the run is going on while a sample
  is taken.
- Every measured program is a fresh Python process, the same code for each transport, only the URL
  differs; the garbage collector is left as Python sets it, the transports' options as they come,
  except the visibility timeout where restoring is measured. A slower transport is measured over
  fewer messages, so that each takes about as long; rates are compared.
- The run fails unless all that was published is stored, all that was consumed was acked, every
  task ran exactly once, and reliq's ledger balances.
- Publish: a `Producer.publish` loop, bodies of 1 000 bytes unless said otherwise. A call returns
  when the message is stored, except with `confirm="none"` and on a classic queue without
  confirms, where it returns when it is written to the socket.
- Publish as web applications do: `task.delay()` of a task without a result in one process, with
  Celery's pool of ten connections for all threads, or with `broker_pool_limit=0`, where each task
  opens a connection and closes it. The interpreter's lock is shared by all threads.
- Consume and ack: a `Consumer` with a callback that acks, and a `drain_events` loop; queues are
  filled beforehand; the connection is closed inside the measured time, so that the last ack
  counts. Several consumers are processes that begin together: from the first message of any to
  the last of any.
- The raw limit of publishing is one LPUSH of the body and its reply; that of consuming is one RPOP
  of as many as the prefetch count, and one HDEL for each, written at once and not waited for.
- Celery: real workers with Celery's defaults (concurrency: the number of cores; gossip, mingle
  and heartbeat on; results ignored). All tasks are published before any is taken; the time is
  taken inside the workers, from the first task that ran to the last, in shared memory, so neither
  start-up nor a log line nor a result counts. A 1 ms task sleeps for it.
- Latency: from when a message is due by the publisher's schedule to the callback, on the clock
  that both processes share; a message that is late because the one before was late counts as
  late. Idle is 100 messages a second. Half load is half of the rate that the same pair of
  processes reached just before, flat out.
- Restore: a consumer reserves every message and is killed with SIGKILL. When its leases have
  lapsed, another consumer starts; the time goes from the first message seen restored to the
  last, watched from outside. Kombu restores 2 000 at most, as more would take minutes; rates per
  message are compared. The longest call is the longest single command, a script's included, in
  Redis's own log (`SLOWLOG`, from 0.1 ms) meanwhile. The bystander exchanges 200 messages a
  second on the same Redis under a key prefix of its own; what it gets during the restore, or in
  the quarter of a second after its begin if it is shorter, is compared with what it got just
  before.
- Killed: a consumer with default options holds every message, another one waits in the queue; the
  first is killed with SIGKILL. The time goes to the first and the last delivery to the other.
- Growth: publish and consume rates with so many messages there already, of 100 bytes; delayed
  ones are due in an hour.
- Memory: growth of `used_memory` for each no-op message that waits, and for each that a consumer
  holds. Commands and bytes per task: one worker with one thread, from publish to ack; commands as
  `MONITOR` shows them, those that a script runs inside Redis left out.
- Idle: the commands that clients send within a minute. The consumer is a plain
  `drain_events(timeout=1)` loop; the worker runs `--without-gossip --without-mingle
  --without-heartbeat`.
- CPU: user and system time of the worker's main process while tasks are published and run,
  divided by the tasks. Where it goes is in the profiles (pyinstrument, prefork), taken apart.
- Cluster: the one server beside it is of the nodes' version, with their settings but for the
  cluster's. Nodes that share a machine take its processors from each other, so no rates are
  measured. CPU of nodes is what each server has used in user and system mode (`INFO cpu`), that of
  the client its process's, divided by all messages: of 1 000 bytes, published by one program to
  each queue in turn, each stored before the next, or, without waiting, with `confirm="none"`; then
  reserved and acked by one consumer with prefetch 64. A server that is asked for one message at a
  time sleeps and wakes for each; one that always has work does not. So what fills a processor is
  computed from the publish without waiting: a second divided by what a publish, a reserve and an
  ack cost the busiest node together. The eight queues are one in each eighth of the slots. The
  eight partitions are compared with one queue that is not divided, on one server.
- Idle in a cluster: as above, over all nodes; 20 queues are one in each twentieth of the slots.
- Moves: bodies of 300 bytes. The slot is moved as `redis-cli` does it, ten keys a call, while one
  program publishes to the queue, one takes from it, and three publish to queues at the source, the
  target and a third node, each 100 times a second; the longest call that the move met counts.
"""
