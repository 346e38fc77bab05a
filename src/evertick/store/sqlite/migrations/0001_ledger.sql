-- compatible_from: 1
-- The first tables. Times and durations are integer microseconds; user data is JSON text.
-- No foreign keys: the ledger keeps rows of schedules and nodes that are gone.

-- The id of the store, its migration, and the oldest code that may still use it.
CREATE TABLE evertick_meta (
    store_id        TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    compatible_from INTEGER NOT NULL
);

CREATE TABLE evertick_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
);

-- One sequence for all claims: a greater fence is a later claim, for all runs and apps.
CREATE TABLE evertick_fence (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    value INTEGER NOT NULL
);
INSERT INTO evertick_fence (id, value) VALUES (1, 0);

-- AUTOINCREMENT: an id is never reused, because runs and versions of a removed schedule are still read by it.
CREATE TABLE evertick_schedules (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    app         TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    format      INTEGER NOT NULL,
    definition  TEXT    NOT NULL,
    pause       TEXT,
    -- Overrides of single future moments; NULL for most schedules.
    occurrences TEXT,
    declared    TEXT,
    UNIQUE (app, key)
);

-- Schedules with pause_after, which are few: read by every node at its start.
CREATE INDEX evertick_schedules_pause_after ON evertick_schedules (app, id)
    WHERE json_extract(definition, '$.pause_after') IS NOT NULL;
-- Declared schedules: read by every sweep.
CREATE INDEX evertick_schedules_declared ON evertick_schedules (app, key) WHERE declared IS NOT NULL;

-- A definition from one version on. Kept after removal, so that old runs can show their arguments.
CREATE TABLE evertick_schedule_versions (
    app         TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    schedule_id INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    definition  TEXT    NOT NULL,
    args        TEXT    NOT NULL,
    PRIMARY KEY (app, key, schedule_id, version)
) WITHOUT ROWID;

-- The cursor. Narrow, because every fire writes it. Its version is the version of the schedule.
CREATE TABLE evertick_due (
    schedule_id INTEGER PRIMARY KEY,
    app         TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    format      INTEGER NOT NULL,
    fire_at     INTEGER,
    at          INTEGER,
    after_end   INTEGER,
    fires       INTEGER NOT NULL DEFAULT 0,
    failures    INTEGER NOT NULL DEFAULT 0,
    error       TEXT,
    fingerprint TEXT    NOT NULL DEFAULT '',
    -- Runs recorded under an earlier version do not count for pause_after.
    counts_from INTEGER NOT NULL DEFAULT 1
);
-- The tick: due schedules, longest due first.
CREATE INDEX evertick_due_at ON evertick_due (app, at) WHERE at IS NOT NULL;
-- Pruning: schedules that will never fire again. Almost empty.
CREATE INDEX evertick_due_finished ON evertick_due (app, schedule_id)
    WHERE fire_at IS NULL AND at IS NULL AND after_end IS NULL;

-- Live runs only. A waiting run that was claimed before keeps the (node, fence) that returned it, so that a repeated
-- outcome gets the answer "already". The next claim overwrites them.
CREATE TABLE evertick_runs (
    app                 TEXT    NOT NULL,
    id                  TEXT    NOT NULL,
    schedule_id         INTEGER,
    schedule_key        TEXT,
    version             INTEGER,
    task                TEXT    NOT NULL,
    cause               TEXT    NOT NULL,
    fire_at             INTEGER NOT NULL,
    due_at              INTEGER NOT NULL,
    queue               TEXT    NOT NULL,
    priority            INTEGER NOT NULL,
    state               TEXT    NOT NULL,
    verdict             TEXT,
    reason              TEXT,
    args                TEXT,
    labels              TEXT,
    expires             INTEGER,
    unique_key          TEXT,
    unique_until        TEXT,
    caused_by           TEXT,
    traceparent         TEXT,
    attempts            INTEGER NOT NULL DEFAULT 0,
    losses              INTEGER NOT NULL DEFAULT 0,
    node                TEXT,
    fence               INTEGER,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER,
    deadline            INTEGER,
    at_most_once        INTEGER NOT NULL DEFAULT 0,
    is_cancel_requested INTEGER NOT NULL DEFAULT 0,
    cancel_reason       TEXT,
    blocked_on          TEXT,
    limit_key           TEXT,
    parked_for          TEXT,
    task_hash           TEXT,
    progress            REAL,
    progress_text       TEXT,
    phases              TEXT,
    error               TEXT,
    result              TEXT,
    -- Nodes that cannot read this format ignore the run.
    format              INTEGER NOT NULL DEFAULT 1,
    -- For dispatched runs: the terms, and when it was dispatched, when the queue had its message, when a worker took
    -- it, and when that worker was asked to stop. `deadline` is then when to check the run.
    dispatch                TEXT,
    dispatched_at           INTEGER,
    pushed_at           INTEGER,
    taken_at            INTEGER,
    killed_at           INTEGER,
    PRIMARY KEY (app, id)
) WITHOUT ROWID;
-- At most one run per nominal moment; triggers and reruns of a moment differ by their id. Also finds the live runs of a
-- schedule, newest moment last.
CREATE UNIQUE INDEX evertick_runs_moment
    ON evertick_runs (schedule_id, fire_at, CASE WHEN cause IN ('fire', 'backfill') THEN '' ELSE id END)
    WHERE schedule_id IS NOT NULL;
-- The claim. With task and format in the index, runs for other nodes are skipped without reading their rows.
CREATE INDEX evertick_runs_claim ON evertick_runs (app, queue, priority DESC, due_at, task, format)
    WHERE state = 'waiting';
-- Runs held by a node: heartbeat, reconciliation, recovery.
CREATE INDEX evertick_runs_running ON evertick_runs (app, node) WHERE state = 'running';
-- One live run per unique key.
CREATE UNIQUE INDEX evertick_runs_unique ON evertick_runs (app, unique_key) WHERE unique_key IS NOT NULL;
-- Runs that a verdict unblocks, and whether a schedule has a queued run.
CREATE INDEX evertick_runs_blocked ON evertick_runs (app, schedule_id, blocked_on) WHERE state = 'blocked';
-- Dispatched runs, by when to check them.
CREATE INDEX evertick_runs_dispatched ON evertick_runs (app, deadline) WHERE state = 'dispatched';
-- Those of them with a cancel request, which any node handles, even if no node reads the reports.
CREATE INDEX evertick_runs_unwanted ON evertick_runs (app, deadline) WHERE state = 'dispatched' AND is_cancel_requested = 1;
-- Running and dispatched runs under a limit, counted by key at the claim. Runs of tasks without a limit are not in it.
CREATE INDEX evertick_runs_limited ON evertick_runs (app, limit_key)
    WHERE state IN ('running', 'dispatched') AND limit_key IS NOT NULL;
-- Runs blocked by a limit, best first of each task and queue; and runs that a limit has released but no node has
-- claimed.
CREATE INDEX evertick_runs_held_back ON evertick_runs (app, limit_key, task, queue, priority DESC, due_at)
    WHERE state = 'blocked' AND limit_key IS NOT NULL;
CREATE INDEX evertick_runs_let_through ON evertick_runs (app, limit_key, task, queue)
    WHERE state = 'waiting' AND limit_key IS NOT NULL;
-- Runs in a node's own queue, to end them when the node is gone. No other runs are in it.
CREATE INDEX evertick_runs_bound ON evertick_runs (app, queue) WHERE queue >= '@' AND queue < 'A';
-- Runs that a joining node may unpark.
CREATE INDEX evertick_runs_parked ON evertick_runs (app, task) WHERE state = 'parked';
-- Whether a run was rerun by hand. Only reruns are in it.
CREATE INDEX evertick_runs_reruns ON evertick_runs (app, caused_by) WHERE cause = 'rerun';

-- Finished runs. The same columns in the same order, except the last ones for dispatched runs. `dispatch` stays, to
-- show which worker had the run.
CREATE TABLE evertick_history (
    app                 TEXT    NOT NULL,
    id                  TEXT    NOT NULL,
    schedule_id         INTEGER,
    schedule_key        TEXT,
    version             INTEGER,
    task                TEXT    NOT NULL,
    cause               TEXT    NOT NULL,
    fire_at             INTEGER NOT NULL,
    due_at              INTEGER NOT NULL,
    queue               TEXT    NOT NULL,
    priority            INTEGER NOT NULL,
    state               TEXT    NOT NULL,
    verdict             TEXT,
    reason              TEXT,
    args                TEXT,
    labels              TEXT,
    expires             INTEGER,
    unique_key          TEXT,
    unique_until        TEXT,
    caused_by           TEXT,
    traceparent         TEXT,
    attempts            INTEGER NOT NULL,
    losses              INTEGER NOT NULL,
    node                TEXT,
    fence               INTEGER,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER NOT NULL,
    deadline            INTEGER,
    at_most_once        INTEGER NOT NULL,
    is_cancel_requested INTEGER NOT NULL,
    cancel_reason       TEXT,
    blocked_on          TEXT,
    limit_key           TEXT,
    parked_for          TEXT,
    task_hash           TEXT,
    progress            REAL,
    progress_text       TEXT,
    phases              TEXT,
    error               TEXT,
    result              TEXT,
    format              INTEGER NOT NULL,
    dispatch                TEXT,
    PRIMARY KEY (app, id)
) WITHOUT ROWID;
-- A moment that has run does not run again. Also the runs of one schedule by time.
CREATE UNIQUE INDEX evertick_history_moment
    ON evertick_history (schedule_id, fire_at, CASE WHEN cause IN ('fire', 'backfill') THEN '' ELSE id END)
    WHERE schedule_id IS NOT NULL;
-- The newest runs of an app for display, the oldest for pruning.
CREATE INDEX evertick_history_time ON evertick_history (app, fire_at);
-- Recent failures, for monitoring: few among many runs.
CREATE INDEX evertick_history_failed ON evertick_history (app, finished_at) WHERE verdict IN ('failed', 'lost');
-- Whether a run was rerun by hand, and the result. Only reruns are in it.
CREATE INDEX evertick_history_reruns ON evertick_history (app, caused_by) WHERE cause = 'rerun';

CREATE TABLE evertick_gaps (
    id           INTEGER PRIMARY KEY,
    app          TEXT    NOT NULL,
    schedule_id  INTEGER NOT NULL,
    schedule_key TEXT    NOT NULL,
    first_at     INTEGER NOT NULL,
    last_at      INTEGER NOT NULL,
    count        INTEGER NOT NULL,
    is_exact     INTEGER NOT NULL,
    verdict      TEXT    NOT NULL,
    reason       TEXT    NOT NULL,
    recorded_at  INTEGER NOT NULL
);
-- The newest gaps of an app, and the oldest for pruning.
CREATE INDEX evertick_gaps_time ON evertick_gaps (app, last_at);
-- The gaps of one schedule.
CREATE INDEX evertick_gaps_key ON evertick_gaps (app, schedule_key, last_at);

-- Earlier attempts: those that failed, and released or lost ones that had phases. The last attempt is in the run
-- itself. is_lost: recorded by the store, not reported by the node.
CREATE TABLE evertick_attempts (
    app         TEXT    NOT NULL,
    run         TEXT    NOT NULL,
    number      INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    node        TEXT,
    started_at  INTEGER,
    finished_at INTEGER NOT NULL,
    error       TEXT,
    reason      TEXT,
    phases      TEXT,
    is_lost     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (app, run, fence)
) WITHOUT ROWID;

-- Log lines in chunks: `seq` is the number of the chunk's first line among the lines of its attempt.
CREATE TABLE evertick_log_chunks (
    app   TEXT    NOT NULL,
    run   TEXT    NOT NULL,
    fence INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    count INTEGER NOT NULL,
    lines TEXT    NOT NULL,
    PRIMARY KEY (app, run, fence, seq)
) WITHOUT ROWID;

-- The tasks that live nodes know, and their limits ('': none).
CREATE TABLE evertick_tasks (
    app    TEXT NOT NULL,
    name   TEXT NOT NULL,
    node   TEXT NOT NULL,
    hash   TEXT NOT NULL,
    limits TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (app, name, node)
) WITHOUT ROWID;

-- Limits under which runs of a task may be blocked: those of its nodes, living or dead, until a node with other limits
-- has checked all blocked runs again.
CREATE TABLE evertick_held_under (
    app    TEXT NOT NULL,
    task   TEXT NOT NULL,
    limits TEXT NOT NULL,
    PRIMARY KEY (app, task, limits)
) WITHOUT ROWID;

-- Limit keys that have a time: when to release the next run of the key, and when that was set (a time in the future
-- there shows that the clock was put back).
CREATE TABLE evertick_limits (
    app     TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    free_at INTEGER NOT NULL,
    set_at  INTEGER NOT NULL,
    PRIMARY KEY (app, key)
) WITHOUT ROWID;
CREATE INDEX evertick_limits_free ON evertick_limits (app, free_at);

-- Starts under a rate, by key, while they count: up to a thousand per period one row each, above that merged in rows
-- with the time of their last start.
CREATE TABLE evertick_grants (
    app   TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    at    INTEGER NOT NULL,
    count INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (app, key, at)
) WITHOUT ROWID;
CREATE INDEX evertick_grants_until ON evertick_grants (app, until);

-- Keys held for a period, whether their run is live or done.
CREATE TABLE evertick_unique (
    app   TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    run   TEXT    NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (app, key)
) WITHOUT ROWID;
CREATE INDEX evertick_unique_until ON evertick_unique (app, until);

-- Named calendars. The greatest id of a name is its newest version.
CREATE TABLE evertick_calendars (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    app     TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    version TEXT    NOT NULL,
    content BLOB    NOT NULL,
    put_at  INTEGER NOT NULL,
    UNIQUE (app, name, version)
);

CREATE TABLE evertick_nodes (
    id          TEXT    PRIMARY KEY,
    name        TEXT    NOT NULL,
    app         TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    beat_at     INTEGER NOT NULL,
    lease       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    died_at     INTEGER,
    queues      TEXT    NOT NULL,
    declares    TEXT    NOT NULL,
    -- When its loops last stepped and will step next, as reported by its last heartbeat.
    ticks       TEXT,
    -- The channels whose messages it delivers.
    channels    TEXT    NOT NULL DEFAULT '[]',
    -- Tasks that it knows but leaves to nodes with their drivers.
    leaves      TEXT    NOT NULL DEFAULT '{}',
    -- The last limit key that it has checked again, '' before the first; NULL: it has nothing to check.
    looked_at   TEXT
);

-- Messages to other systems, written in the transaction of the change that causes them. A message has `claimed_at`
-- while a node sends it. (node, fence) stay after that, so that a repeated outcome gets the answer "already". Sent and
-- dead messages have `forget_at`, until which their keys are known.
CREATE TABLE evertick_outbox (
    id         TEXT    PRIMARY KEY,
    app        TEXT    NOT NULL,
    channel    TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    headers    TEXT,
    state      TEXT    NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    due_at     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    node       TEXT,
    fence      INTEGER,
    claimed_at INTEGER,
    settled_at INTEGER,
    forget_at  INTEGER,
    error      TEXT,
    caused_by  TEXT,
    -- The fence under which it dispatches the run that causes it.
    dispatches INTEGER,
    format     INTEGER NOT NULL DEFAULT 1
);
-- A key names one message.
CREATE UNIQUE INDEX evertick_outbox_key ON evertick_outbox (app, channel, key);
-- The claim; and messages that are being sent.
CREATE INDEX evertick_outbox_waiting ON evertick_outbox (app, channel, due_at) WHERE state = 'waiting';
CREATE INDEX evertick_outbox_sending ON evertick_outbox (app, channel, node) WHERE state = 'sending';
-- Messages that failed and are tried again. A message that is sent at the first attempt is not in it.
CREATE INDEX evertick_outbox_failing ON evertick_outbox (app, channel, created_at)
    WHERE state IN ('waiting', 'sending') AND attempts > 0;
-- For display, and for the doctor.
CREATE INDEX evertick_outbox_dead ON evertick_outbox (app, channel) WHERE state = 'dead';
-- Pruning.
CREATE INDEX evertick_outbox_forget ON evertick_outbox (app, forget_at) WHERE forget_at IS NOT NULL;

-- Duties: work that one node does at a time. Held until the node dies or resigns (NULL). The row without a name keeps
-- the greatest pruned term, so that no term is used twice.
CREATE TABLE evertick_duties (
    app       TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    node      TEXT,
    term      INTEGER NOT NULL,
    since     INTEGER NOT NULL,
    ticked_at INTEGER,
    next_at   INTEGER,
    error     TEXT,
    PRIMARY KEY (app, name)
) WITHOUT ROWID;

-- Apps whose events are kept. An epoch is a sequence of events without gaps; events up to `pruned_seq` are pruned.
CREATE TABLE evertick_feeds (
    app        TEXT    PRIMARY KEY,
    epoch      TEXT    NOT NULL,
    kept       INTEGER NOT NULL,
    pruned_seq INTEGER NOT NULL
) WITHOUT ROWID;

-- Events: one row has many of one kind from one transaction. AUTOINCREMENT: no event is ever inserted before one that
-- was read.
CREATE TABLE evertick_feed (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    app  TEXT    NOT NULL,
    at   INTEGER NOT NULL,
    kind TEXT    NOT NULL,
    body TEXT    NOT NULL
);
CREATE INDEX evertick_feed_app ON evertick_feed (app, seq);
