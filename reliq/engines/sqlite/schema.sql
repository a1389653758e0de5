-- The file of a broker, version 4 (PRAGMA user_version; schema.py brings older ones up to date).
--
-- All times are ms since the epoch by the machine's clock. What belongs to one
-- global_keyprefix has it in the column prefix: several brokers share a file so.

-- One row for each queue: what it was declared with, what its steps need of that, its
-- ledger, and its notification. A step reads it once and writes it at most once.
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: what is late finds nothing
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    -- the ledger
    published INTEGER NOT NULL DEFAULT 0,
    acked INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    purged INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0,
    moved INTEGER NOT NULL DEFAULT 0,
    -- what else is counted
    dead_lettered INTEGER NOT NULL DEFAULT 0,
    replayed INTEGER NOT NULL DEFAULT 0,
    restored INTEGER NOT NULL DEFAULT 0,
    undelivered INTEGER NOT NULL DEFAULT 0,
    released INTEGER NOT NULL DEFAULT 0,
    nacked INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0, -- given out when it had been delivered before
    lapsed INTEGER NOT NULL DEFAULT 0, -- leases that ended without their holder
    waiting_bytes INTEGER NOT NULL DEFAULT 0, -- of ready and delayed; only with max_bytes
    -- sequences
    promoted INTEGER NOT NULL DEFAULT 0, -- published + promoted never repeats: the order
    token INTEGER NOT NULL DEFAULT 0, -- the last lease token, or number of an event of a job
    move INTEGER NOT NULL DEFAULT 0, -- the last number of a move, in us since the epoch
    -- the notification: 1 when nobody waited for it, for who begins to wait next
    notification INTEGER NOT NULL DEFAULT 0,
    -- flags and duties
    paused INTEGER NOT NULL DEFAULT 0,
    used_at INTEGER, -- when it was declared, asked or left last
    check_at INTEGER NOT NULL DEFAULT 0, -- when to look after it next
    -- the last pass of restore_visible, when the next one is long overdue; leases that ran out
    -- after spared_from are left alone until spared_until
    passed INTEGER NOT NULL DEFAULT 0,
    pass_due INTEGER NOT NULL DEFAULT 0,
    spared_from INTEGER NOT NULL DEFAULT 0,
    spared_until INTEGER NOT NULL DEFAULT 0,
    -- the declaration: msgpack as it is compared (NULL: a publish created the queue),
    -- and what steps need of it, NULL where it says nothing
    arguments BLOB,
    auto_delete INTEGER,
    expires INTEGER,
    message_ttl INTEGER,
    max_priority INTEGER,
    lease INTEGER,
    delivery_limit INTEGER, -- 0: no limit
    max_length INTEGER,
    max_bytes INTEGER,
    overflow TEXT,
    dead_letter_exchange TEXT,
    dead_letter_routing_key TEXT,
    dead_expired INTEGER,
    job_events INTEGER NOT NULL DEFAULT 0, -- how many of the tokens were numbers of events
    noted TEXT NOT NULL DEFAULT '', -- of the last snapshot: when, and the counters then
    UNIQUE (prefix, name)
);

-- Every message is one row here, in whatever state, and one in envelopes, under the same
-- envelope id. Apart, so that a message changes its state without its bytes being written again.
CREATE TABLE messages (
    queue INTEGER NOT NULL,
    tag TEXT NOT NULL,
    state INTEGER NOT NULL, -- 0 ready, 1 delayed, 2 unacked, 3 dead
    -- its order in that state: ready: score (rank * 2^45 + sequence); delayed: when it is due;
    -- unacked: deadline (0: ended; 2^62: held by a move); dead: when it died
    position INTEGER NOT NULL,
    score INTEGER, -- its place among the ready, to which it returns; NULL: not promoted yet
    token INTEGER NOT NULL DEFAULT 0, -- of the lease
    owner TEXT, -- consumer that holds it ("move/target": a move), or held it as it died
    failed INTEGER, -- failed deliveries; 0: was returned in order; NULL: never delivered
    expires INTEGER,
    envelope INTEGER NOT NULL,
    due INTEGER, -- held by a move: when it is due; NULL: it was ready
    reason TEXT, -- dead: why; unacked: 'alone' where the delivery is an isolated one
    error TEXT,
    PRIMARY KEY (queue, tag)
) WITHOUT ROWID;
CREATE INDEX places ON messages (queue, state, position);
CREATE INDEX expiries ON messages (queue, expires) WHERE expires IS NOT NULL AND state < 2;

CREATE TABLE envelopes (
    id INTEGER PRIMARY KEY,
    envelope BLOB NOT NULL
);

-- Snapshots of counts and ledger: sixty in a block, as store/history.py packs them.
CREATE TABLE history (
    queue INTEGER NOT NULL,
    block INTEGER NOT NULL, -- so many times sixty minutes after the epoch
    records BLOB NOT NULL,
    PRIMARY KEY (queue, block)
) WITHOUT ROWID;

-- The last failed deliveries of each queue.
CREATE TABLE failed_deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    tag TEXT NOT NULL,
    at INTEGER NOT NULL,
    how TEXT NOT NULL, -- lapsed, requeued, or why the message died of it
    failed INTEGER NOT NULL, -- failed deliveries by then
    consumer TEXT NOT NULL -- who held it
);
CREATE INDEX failed_deliveries_queue ON failed_deliveries (queue, number);

-- How many died, by reason; all of a queue are its dead_lettered.
CREATE TABLE deaths (
    queue INTEGER NOT NULL,
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (queue, reason)
) WITHOUT ROWID;

-- The one poison candidate that a consumer holds. For the consumer '': the message that
-- waits to be delivered alone, to whom, and until when (tag|consumer|ms).
CREATE TABLE candidates (
    queue INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    tag TEXT NOT NULL,
    PRIMARY KEY (queue, consumer)
) WITHOUT ROWID;

-- Numbers of publishes (and of moves that come here) that may be tried again. They outlive
-- the queue by a minute: a retry that is on its way finds what is known of it.
CREATE TABLE publishers (
    prefix TEXT NOT NULL,
    queue TEXT NOT NULL,
    publisher TEXT NOT NULL, -- "move:source" for a move
    low_water INTEGER NOT NULL, -- every number below it is settled
    numbers TEXT NOT NULL, -- known ones from there on, as "4-8,10"
    until INTEGER NOT NULL, -- forgotten then
    PRIMARY KEY (prefix, queue, publisher)
) WITHOUT ROWID;

-- Messages on their way to another queue or broker.
CREATE TABLE moves (
    queue INTEGER NOT NULL,
    tag TEXT NOT NULL,
    number INTEGER NOT NULL,
    target TEXT NOT NULL, -- '': wherever it is moved first
    publisher TEXT, -- of a message that another broker may have: who published it,
    publish INTEGER, -- and under which number
    PRIMARY KEY (queue, tag)
) WITHOUT ROWID;

-- Who consumes from a queue, declared or not.
CREATE TABLE attached (
    prefix TEXT NOT NULL,
    queue TEXT NOT NULL,
    consumer TEXT NOT NULL,
    subscriptions INTEGER NOT NULL,
    mark TEXT NOT NULL, -- the connection that began it
    PRIMARY KEY (prefix, queue, consumer)
) WITHOUT ROWID;

-- The register: what consumers say of themselves with each heartbeat.
CREATE TABLE consumers (
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    seen INTEGER NOT NULL, -- the last heartbeat
    until INTEGER NOT NULL, -- when the record lapses
    record TEXT NOT NULL, -- JSON: host, pid, client_id, queues ...
    PRIMARY KEY (prefix, id)
) WITHOUT ROWID;

CREATE TABLE exchanges (
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    declaration BLOB, -- NULL: only bindings are known
    version BLOB, -- of the bindings; NULL: it never had any
    PRIMARY KEY (prefix, name)
) WITHOUT ROWID;

CREATE TABLE bindings (
    prefix TEXT NOT NULL,
    exchange TEXT NOT NULL,
    binding BLOB NOT NULL,
    queue TEXT, -- whose it is; NULL: not said
    PRIMARY KEY (prefix, exchange, binding)
) WITHOUT ROWID;
CREATE INDEX bindings_queue ON bindings (prefix, queue);

CREATE TABLE claims (
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    token TEXT NOT NULL,
    finished INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (prefix, name)
) WITHOUT ROWID;
CREATE INDEX claims_until ON claims (until);

-- The names by which other brokers know these.
CREATE TABLE brokers (
    prefix TEXT PRIMARY KEY,
    id TEXT NOT NULL
) WITHOUT ROWID;

-- Who does the pass of restore_visible over a queue, declared or not.
CREATE TABLE passes (
    prefix TEXT NOT NULL,
    queue TEXT NOT NULL,
    owner TEXT NOT NULL,
    until INTEGER NOT NULL,
    ahead INTEGER NOT NULL, -- of the clock, compared to one that stops in sleep
    jumped INTEGER NOT NULL, -- when that was found changed last; 0: never
    PRIMARY KEY (prefix, queue)
) WITHOUT ROWID;

-- Who waits for the notification of a queue. One is taken out, and its FIFO written to.
CREATE TABLE waiters (
    prefix TEXT NOT NULL,
    queue TEXT NOT NULL,
    notification TEXT NOT NULL, -- name of the FIFO beside the file
    PRIMARY KEY (prefix, queue, notification)
) WITHOUT ROWID;
CREATE INDEX waiters_bell ON waiters (notification);

-- Batches of jobs: what each is, how many jobs are in each state, and what is to be said of it.
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    fields TEXT NOT NULL, -- JSON: what its producer has noted with it
    created INTEGER NOT NULL,
    check_at INTEGER NOT NULL, -- when to look after it next
    forgotten INTEGER NOT NULL DEFAULT 0, -- 1: its jobs are being removed, then it goes
    -- since when; NULL: not yet
    sealed INTEGER,
    cancelled INTEGER,
    ended INTEGER,
    due_failure INTEGER,
    due_complete INTEGER,
    due_success INTEGER,
    said_failure INTEGER,
    said_complete INTEGER,
    said_success INTEGER,
    added INTEGER, -- when a job was added last
    -- how many jobs are in each state
    waiting INTEGER NOT NULL DEFAULT 0,
    delayed INTEGER NOT NULL DEFAULT 0,
    working INTEGER NOT NULL DEFAULT 0,
    retrying INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    error INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0 -- those that were cancelled
);
CREATE UNIQUE INDEX batches_id ON batches (prefix, id) WHERE forgotten = 0;
CREATE INDEX batches_created ON batches (prefix, created);
CREATE INDEX batches_check_at ON batches (prefix, check_at);

-- What is known of each job of a batch.
CREATE TABLE jobs (
    batch INTEGER NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL, -- one letter, as store/jobs.py has them
    retries INTEGER NOT NULL,
    token INTEGER NOT NULL, -- of the lease under which it was begun last; 0: of none
    since INTEGER NOT NULL,
    tag TEXT NOT NULL, -- where its message is; '': not known
    queue TEXT NOT NULL,
    worker TEXT, -- who works on it; of one that is retrying the tag of the try before
    failed_at INTEGER,
    error TEXT, -- why it failed
    PRIMARY KEY (batch, id)
) WITHOUT ROWID;
CREATE INDEX failures ON jobs (batch, failed_at) WHERE failed_at IS NOT NULL;

-- What jobs have said while they ran: how far they are, and how often they have reported.
CREATE TABLE job_notes (
    batch INTEGER NOT NULL,
    id TEXT NOT NULL,
    reported INTEGER NOT NULL,
    at INTEGER, -- when it has said last how far it is; NULL: never
    done REAL,
    total REAL,
    text TEXT,
    PRIMARY KEY (batch, id)
) WITHOUT ROWID;
CREATE INDEX job_notes_at ON job_notes (batch, at) WHERE at IS NOT NULL;

-- What jobs have reported; the last of each batch.
CREATE TABLE job_reports (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    job TEXT NOT NULL,
    at INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX job_reports_batch ON job_reports (batch, number);

-- What became of jobs, until their batches are told.
CREATE TABLE job_events (
    queue INTEGER NOT NULL,
    number INTEGER NOT NULL, -- in the order of the queue's tokens
    what TEXT NOT NULL, -- dead, gone or waits
    tag TEXT NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    envelope BLOB NOT NULL, -- without its body
    PRIMARY KEY (queue, number)
) WITHOUT ROWID;
