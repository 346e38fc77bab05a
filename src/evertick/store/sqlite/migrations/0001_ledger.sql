-- compatible_from: 1
-- The first tables. Times and durations are integer microseconds; what people wrote is JSON text.
-- No foreign keys: the ledger outlives the schedules and nodes it speaks of.

-- Which store this is, which migration it has reached, and the oldest code that may still use it.
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

-- One sequence for all claims: a greater fence is a later claim, across runs and apps.
CREATE TABLE evertick_fence (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    value INTEGER NOT NULL
);
INSERT INTO evertick_fence (id, value) VALUES (1, 0);

-- AUTOINCREMENT: an id is never given twice, since runs and versions of a removed schedule stay readable by it.
CREATE TABLE evertick_schedules (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    app         TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    format      INTEGER NOT NULL,
    definition  TEXT    NOT NULL,
    pause       TEXT,
    -- Decisions about single moments to come; NULL for nearly all.
    occurrences TEXT,
    declared    TEXT,
    UNIQUE (app, key)
);

-- The few schedules that pause themselves: looked at by every node that starts.
CREATE INDEX evertick_schedules_pause_after ON evertick_schedules (app, id)
    WHERE json_extract(definition, '$.pause_after') IS NOT NULL;
-- Those that code declares, however many others there are: looked at by every sweep.
CREATE INDEX evertick_schedules_declared ON evertick_schedules (app, key) WHERE declared IS NOT NULL;

-- A definition as it was from a version on. Kept after removal, so that old runs can show their arguments.
CREATE TABLE evertick_schedule_versions (
    app         TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    schedule_id INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    definition  TEXT    NOT NULL,
    args        TEXT    NOT NULL,
    PRIMARY KEY (app, key, schedule_id, version)
) WITHOUT ROWID;

-- The cursor, narrow because every fire writes it. Its version is the version of the schedule.
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
-- The tick: who is due, longest due first.
CREATE INDEX evertick_due_at ON evertick_due (app, at) WHERE at IS NOT NULL;
-- Pruning: schedules that will never fire again. Nearly empty.
CREATE INDEX evertick_due_finished ON evertick_due (app, schedule_id)
    WHERE fire_at IS NULL AND at IS NULL AND after_end IS NULL;

-- Live runs only. A waiting run that was held before keeps the (node, fence) that put it back: so that owner, whose
-- answer was lost, can be told "already". The next claim overwrites them.
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
    -- Nodes that cannot read it leave it alone.
    format              INTEGER NOT NULL DEFAULT 1,
    -- Of a dispatched run: what was agreed; when it was dispatched, when the queue had its message, when a worker took it,
    -- when that was told to stop. `deadline` is then when to look at it.
    dispatch                TEXT,
    dispatched_at           INTEGER,
    pushed_at           INTEGER,
    taken_at            INTEGER,
    killed_at           INTEGER,
    PRIMARY KEY (app, id)
) WITHOUT ROWID;
-- At most one run per nominal moment; triggers and reruns of it are told apart by their id. Also finds the live runs of
-- a schedule, newest moment last.
CREATE UNIQUE INDEX evertick_runs_moment
    ON evertick_runs (schedule_id, fire_at, CASE WHEN cause IN ('fire', 'backfill') THEN '' ELSE id END)
    WHERE schedule_id IS NOT NULL;
-- The claim. With task and format in it, runs for other nodes are passed over without reading their rows.
CREATE INDEX evertick_runs_claim ON evertick_runs (app, queue, priority DESC, due_at, task, format)
    WHERE state = 'waiting';
-- What a node holds: its beat, reconciling, re-homing.
CREATE INDEX evertick_runs_running ON evertick_runs (app, node) WHERE state = 'running';
-- One live run per unique key.
CREATE UNIQUE INDEX evertick_runs_unique ON evertick_runs (app, unique_key) WHERE unique_key IS NOT NULL;
-- What a verdict frees, and whether a schedule has one queued.
CREATE INDEX evertick_runs_blocked ON evertick_runs (app, schedule_id, blocked_on) WHERE state = 'blocked';
-- What is in the hands of an outside queue, and which of that is to be looked at.
CREATE INDEX evertick_runs_dispatched ON evertick_runs (app, deadline) WHERE state = 'dispatched';
-- Of these, those to be cancelled: anybody may see to them, also while nobody hears of the others.
CREATE INDEX evertick_runs_unwanted ON evertick_runs (app, deadline) WHERE state = 'dispatched' AND is_cancel_requested = 1;
-- What runs under a limit, here or in other hands, counted by its key at the claim; nothing for tasks without one.
CREATE INDEX evertick_runs_limited ON evertick_runs (app, limit_key)
    WHERE state IN ('running', 'dispatched') AND limit_key IS NOT NULL;
-- What waits for a limit, best first of each task and queue; and what was let through for one and is not claimed yet.
CREATE INDEX evertick_runs_held_back ON evertick_runs (app, limit_key, task, queue, priority DESC, due_at)
    WHERE state = 'blocked' AND limit_key IS NOT NULL;
CREATE INDEX evertick_runs_let_through ON evertick_runs (app, limit_key, task, queue)
    WHERE state = 'waiting' AND limit_key IS NOT NULL;
-- Runs that are for one node alone, in its own queue: what is left of them when it is gone. No others are in it.
CREATE INDEX evertick_runs_bound ON evertick_runs (app, queue) WHERE queue >= '@' AND queue < 'A';
-- What a node frees when it comes.
CREATE INDEX evertick_runs_parked ON evertick_runs (app, task) WHERE state = 'parked';
-- Whether a run was run again by hand. Only reruns are in it.
CREATE INDEX evertick_runs_reruns ON evertick_runs (app, caused_by) WHERE cause = 'rerun';

-- Runs that are done; the columns of evertick_runs in the same order, but for the last, of dispatched ones. Of a run that
-- ended in other hands `dispatch` stays: it says in whose.
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
-- A moment that has run does not run again; also the runs of one schedule by time.
CREATE UNIQUE INDEX evertick_history_moment
    ON evertick_history (schedule_id, fire_at, CASE WHEN cause IN ('fire', 'backfill') THEN '' ELSE id END)
    WHERE schedule_id IS NOT NULL;
-- The newest runs of an app for people, the oldest for pruning.
CREATE INDEX evertick_history_time ON evertick_history (app, fire_at);
-- What went wrong of late, for those who watch: the few among the many.
CREATE INDEX evertick_history_failed ON evertick_history (app, finished_at) WHERE verdict IN ('failed', 'lost');
-- Whether a run was run again by hand, and what came of that. Only reruns are in it.
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

-- Earlier tries; the last one is in the run itself. Those that failed, and those that were cut off and had phases. is_lost:
-- the store's own word, not that of the node.
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

-- Log lines as they came: `seq` is the number of the first line of the chunk among the lines of its attempt.
CREATE TABLE evertick_log_chunks (
    app   TEXT    NOT NULL,
    run   TEXT    NOT NULL,
    fence INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    count INTEGER NOT NULL,
    lines TEXT    NOT NULL,
    PRIMARY KEY (app, run, fence, seq)
) WITHOUT ROWID;

-- What live nodes know, and under which limits ('': none).
CREATE TABLE evertick_tasks (
    app    TEXT NOT NULL,
    name   TEXT NOT NULL,
    node   TEXT NOT NULL,
    hash   TEXT NOT NULL,
    limits TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (app, name, node)
) WITHOUT ROWID;

-- Limits that runs of a task may be held back under: those of its nodes, living or dead, until one with others has looked
-- again at all that is held back.
CREATE TABLE evertick_held_under (
    app    TEXT NOT NULL,
    task   TEXT NOT NULL,
    limits TEXT NOT NULL,
    PRIMARY KEY (app, task, limits)
) WITHOUT ROWID;

-- Keys of limits that something waits for by time: when to let the next of that key through, and when that was set (a
-- time to come there shows that the clock was put back).
CREATE TABLE evertick_limits (
    app     TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    free_at INTEGER NOT NULL,
    set_at  INTEGER NOT NULL,
    PRIMARY KEY (app, key)
) WITHOUT ROWID;
CREATE INDEX evertick_limits_free ON evertick_limits (app, free_at);

-- Starts under a rate, by key, while they count: up to a thousand per period each with its time, above that gathered in
-- rows whose time is that of their last start.
CREATE TABLE evertick_grants (
    app   TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    at    INTEGER NOT NULL,
    count INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (app, key, at)
) WITHOUT ROWID;
CREATE INDEX evertick_grants_until ON evertick_grants (app, until);

-- Keys that are unique for a period, whether their run is live or not.
CREATE TABLE evertick_unique (
    app   TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    run   TEXT    NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (app, key)
) WITHOUT ROWID;
CREATE INDEX evertick_unique_until ON evertick_unique (app, until);

-- Named calendars; the greatest id of a name is its newest version.
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
    -- When its loops have stepped and will step, as it said with its last beat.
    ticks       TEXT,
    -- The channels of messages that it hands to the outside.
    channels    TEXT    NOT NULL DEFAULT '[]',
    -- Tasks that it knows and leaves to nodes with their drivers.
    leaves      TEXT    NOT NULL DEFAULT '{}',
    -- The last key of a limit that it has looked at again, '' before the first; NULL: it has no reason to.
    looked_at   TEXT
);

-- What is to be dispatched to the outside, written in the transaction that causes it. A message has `claimed_at` while a
-- node sends it; (node, fence) stay after that, so that an owner whose answer was lost can be told "already". Sent and
-- dead ones have `forget_at`, until which their keys are known.
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
-- The same key again is the same message.
CREATE UNIQUE INDEX evertick_outbox_key ON evertick_outbox (app, channel, key);
-- The claim; and what is on its way.
CREATE INDEX evertick_outbox_waiting ON evertick_outbox (app, channel, due_at) WHERE state = 'waiting';
CREATE INDEX evertick_outbox_sending ON evertick_outbox (app, channel, node) WHERE state = 'sending';
-- What was tried in vain and is tried again: nothing is written here for a message that goes through at once.
CREATE INDEX evertick_outbox_failing ON evertick_outbox (app, channel, created_at)
    WHERE state IN ('waiting', 'sending') AND attempts > 0;
-- For people, and for the doctor.
CREATE INDEX evertick_outbox_dead ON evertick_outbox (app, channel) WHERE state = 'dead';
-- Pruning.
CREATE INDEX evertick_outbox_forget ON evertick_outbox (app, forget_at) WHERE forget_at IS NOT NULL;

-- Work that one node does at a time. Held while its node lives and has not resigned (NULL). The row without a name keeps
-- the greatest term of those that were forgotten, so that no term ever comes twice.
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

-- Apps whose events are kept for other programs. An epoch is a stretch of events without a hole; those up to
-- `pruned_seq` are kept no longer.
CREATE TABLE evertick_feeds (
    app        TEXT    PRIMARY KEY,
    epoch      TEXT    NOT NULL,
    kept       INTEGER NOT NULL,
    pruned_seq INTEGER NOT NULL
) WITHOUT ROWID;

-- What happened, many facts of one kind and one transaction in a row. AUTOINCREMENT: nothing is ever written before
-- what somebody has read.
CREATE TABLE evertick_feed (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    app  TEXT    NOT NULL,
    at   INTEGER NOT NULL,
    kind TEXT    NOT NULL,
    body TEXT    NOT NULL
);
CREATE INDEX evertick_feed_app ON evertick_feed (app, seq);
