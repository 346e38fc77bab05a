-- compatible_from: 1
-- The first tables. Times and durations are bigint microseconds; user data is JSON text. `evertick` is replaced by the
-- schema of the store when the file is read. No foreign keys: the ledger keeps rows of schedules and nodes that are
-- gone. Names sort by their bytes (COLLATE "C"), as Python sorts them.
--
-- Autovacuum by a number of rows instead of a share: live tables are emptied and filled all day, and a share of almost
-- no rows or of almost all rows would come too often or too late.

-- The store's time, one function for all guards. Always as `(SELECT evertick.now_us())`, which an index search can use;
-- a bare volatile call cannot.
CREATE FUNCTION evertick.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The id of the store, its migration, and the oldest code that may still use it.
CREATE TABLE evertick.meta (
    store_id        text    NOT NULL,
    version         integer NOT NULL,
    compatible_from integer NOT NULL
);

CREATE TABLE evertick.migrations (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    checksum   text    NOT NULL,
    applied_at bigint  NOT NULL
);

-- One sequence for all claims: a greater fence is a later claim, for all runs and apps. No cache, which would give a
-- connection numbers in advance.
CREATE SEQUENCE evertick.fence CACHE 1;

CREATE TABLE evertick.schedules (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app         text   COLLATE "C" NOT NULL,
    key         text   COLLATE "C" NOT NULL,
    created_at  bigint NOT NULL,
    format      integer NOT NULL,
    definition  text   NOT NULL,
    -- Copied from the definition, for filters.
    labels      jsonb,
    pause_after integer,
    when_text   text   NOT NULL DEFAULT '',
    blackout    text,
    pause       text,
    -- Overrides of single future moments; NULL for most schedules.
    occurrences text,
    declared    text,
    UNIQUE (app, key)
);
-- Schedules with pause_after, which are few: read by every sweep.
CREATE INDEX schedules_pause_after ON evertick.schedules (app, id) WHERE pause_after IS NOT NULL;
-- Declared schedules: read by every sweep.
CREATE INDEX schedules_declared ON evertick.schedules (app, key) WHERE declared IS NOT NULL;

-- A definition from one version on. Kept after removal, so that old runs can show their arguments.
CREATE TABLE evertick.schedule_versions (
    app         text    COLLATE "C" NOT NULL,
    key         text    COLLATE "C" NOT NULL,
    schedule_id bigint  NOT NULL,
    version     integer NOT NULL,
    definition  text    NOT NULL,
    args        text    NOT NULL,
    PRIMARY KEY (app, key, schedule_id, version)
);
-- The arguments of a run, by its schedule.
CREATE INDEX schedule_versions_id ON evertick.schedule_versions (schedule_id, version DESC);

-- The cursor. Narrow, because every fire writes it, with free space on its pages for the next version of each row. Its
-- version is the version of the schedule.
CREATE TABLE evertick.due (
    schedule_id bigint  PRIMARY KEY,
    app         text    COLLATE "C" NOT NULL,
    version     integer NOT NULL,
    format      integer NOT NULL,
    fire_at     bigint,
    at          bigint,
    after_end   bigint,
    fires       bigint  NOT NULL DEFAULT 0,
    failures    integer NOT NULL DEFAULT 0,
    error       text,
    fingerprint text    NOT NULL DEFAULT '',
    -- Runs recorded under an earlier version do not count for pause_after.
    counts_from integer NOT NULL DEFAULT 1
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.25, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0);
-- The tick: due schedules, longest due first.
CREATE INDEX due_at ON evertick.due (app, at, schedule_id) WHERE at IS NOT NULL;
-- Pruning: schedules that will never fire again. Almost empty.
CREATE INDEX due_finished ON evertick.due (app, schedule_id)
    WHERE fire_at IS NULL AND at IS NULL AND after_end IS NULL;

-- Live runs only. A waiting run that was claimed before keeps the (node, fence) that returned it, so that a repeated
-- outcome gets the answer "already". The next claim overwrites them. A run has `started_at` while a node holds it.
CREATE TABLE evertick.runs (
    id                  uuid    PRIMARY KEY,
    app                 text    COLLATE "C" NOT NULL,
    schedule_id         bigint,
    schedule_key        text    COLLATE "C",
    version             integer,
    task                text    COLLATE "C" NOT NULL,
    cause               text    NOT NULL,
    fire_at             bigint  NOT NULL,
    due_at              bigint  NOT NULL,
    queue               text    COLLATE "C" NOT NULL,
    priority            bigint  NOT NULL,
    state               text    NOT NULL,
    reason              text,
    args                text,
    labels              jsonb,
    expires             bigint,
    unique_key          text    COLLATE "C",
    unique_until        text,
    caused_by           text,
    traceparent         text,
    attempts            integer NOT NULL DEFAULT 0,
    losses              integer NOT NULL DEFAULT 0,
    node                text    COLLATE "C",
    fence               bigint,
    created_at          bigint  NOT NULL,
    started_at          bigint,
    deadline            bigint,
    at_most_once        boolean NOT NULL DEFAULT false,
    is_cancel_requested boolean NOT NULL DEFAULT false,
    cancel_reason       text,
    blocked_on          uuid,
    limit_key           text    COLLATE "C",
    parked_for          text,
    task_hash           text,
    progress            double precision,
    progress_text       text,
    phases              text,
    error               text,
    -- Its end affects others: a run is blocked on it, or its schedule counts from the end. Such a run ends under the
    -- lock of its schedule's row in `due`; all others end without reading other rows.
    frees               boolean NOT NULL DEFAULT false,
    -- For dispatched runs: the terms, and when it was dispatched, when the queue had its message, when a worker took
    -- it, and when that worker was asked to stop. `deadline` is then when to check the run.
    dispatch                text,
    dispatched_at           bigint,
    pushed_at           bigint,
    taken_at            bigint,
    killed_at           bigint,
    -- Nodes that cannot read this format ignore the run.
    format              integer NOT NULL DEFAULT 1
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
-- At most one run per nominal moment; triggers and reruns of a moment differ by their id. Also finds the live runs of a
-- schedule, newest moment last.
CREATE UNIQUE INDEX runs_moment
    ON evertick.runs (schedule_id, fire_at, (
        CASE WHEN cause IN ('fire', 'backfill') THEN '00000000-0000-0000-0000-000000000000' ELSE id END))
    WHERE schedule_id IS NOT NULL;
-- The claim. With the task in the index, runs for other nodes are skipped without reading their rows.
CREATE INDEX runs_claim ON evertick.runs (app, queue, priority DESC, due_at, task) WHERE state = 'waiting';
-- Waiting runs that expire.
CREATE INDEX runs_expiring ON evertick.runs (app, (due_at + expires)) WHERE state = 'waiting' AND expires IS NOT NULL;
-- Runs held by a node: heartbeat, reconciliation, recovery.
CREATE INDEX runs_running ON evertick.runs (app, node) WHERE state = 'running';
-- Running runs by deadline, to find overdue ones. Runs of tasks without a timeout are not in it.
CREATE INDEX runs_deadline ON evertick.runs (app, deadline) WHERE state = 'running' AND deadline IS NOT NULL;
-- One live run per unique key.
CREATE UNIQUE INDEX runs_unique ON evertick.runs (app, unique_key) WHERE unique_key IS NOT NULL;
-- Runs that a verdict unblocks, and whether a schedule has a queued run.
CREATE INDEX runs_blocked ON evertick.runs (app, schedule_id, blocked_on) WHERE state = 'blocked';
-- Dispatched runs, by when to check them.
CREATE INDEX runs_dispatched ON evertick.runs (app, deadline) WHERE state = 'dispatched';
-- Those of them with a cancel request, which any node handles, even if no node reads the reports.
CREATE INDEX runs_unwanted ON evertick.runs (app, deadline) WHERE state = 'dispatched' AND is_cancel_requested;
-- Running and dispatched runs under a limit, counted by key at the claim. Runs of tasks without a limit are not in it.
CREATE INDEX runs_limited ON evertick.runs (app, limit_key)
    WHERE state IN ('running', 'dispatched') AND limit_key IS NOT NULL;
-- Runs blocked by a limit, best first of each task and queue; and runs that a limit has released but no node has
-- claimed.
CREATE INDEX runs_held_back ON evertick.runs (app, limit_key, task, queue, priority DESC, due_at)
    WHERE state = 'blocked' AND limit_key IS NOT NULL;
CREATE INDEX runs_let_through ON evertick.runs (app, limit_key, task, queue)
    WHERE state = 'waiting' AND limit_key IS NOT NULL;
-- Runs in a node's own queue, to end them when the node is gone. No other runs are in it.
CREATE INDEX runs_bound ON evertick.runs (app, queue) WHERE queue >= '@' AND queue < 'A';
-- Runs that a joining node may unpark.
CREATE INDEX runs_parked ON evertick.runs (app, task) WHERE state = 'parked';
-- Whether a run was rerun by hand. Only reruns are in it.
CREATE INDEX runs_reruns ON evertick.runs (app, caused_by) WHERE cause = 'rerun';

-- Finished runs, partitioned by the day of their moment. Runs without a partition of their day are in the default one.
CREATE TABLE evertick.history (
    id                  uuid    NOT NULL,
    app                 text    COLLATE "C" NOT NULL,
    schedule_id         bigint,
    schedule_key        text    COLLATE "C",
    version             integer,
    task                text    COLLATE "C" NOT NULL,
    cause               text    NOT NULL,
    fire_at             bigint  NOT NULL,
    due_at              bigint  NOT NULL,
    queue               text    COLLATE "C" NOT NULL,
    priority            bigint  NOT NULL,
    verdict             text    NOT NULL,
    reason              text,
    args                text,
    labels              jsonb,
    expires             bigint,
    caused_by           text,
    traceparent         text,
    attempts            integer NOT NULL,
    losses              integer NOT NULL,
    node                text    COLLATE "C",
    fence               bigint,
    created_at          bigint  NOT NULL,
    started_at          bigint,
    finished_at         bigint  NOT NULL,
    is_cancel_requested boolean NOT NULL,
    cancel_reason       text,
    progress            double precision,
    progress_text       text,
    phases              text,
    error               text,
    result              text,
    -- Of a dispatched run: the terms, and which worker had it.
    dispatch                text
) PARTITION BY RANGE (fire_at);
-- A moment that has run does not run again. Also the runs of one schedule by time.
CREATE UNIQUE INDEX history_moment
    ON evertick.history (schedule_id, fire_at, (
        CASE WHEN cause IN ('fire', 'backfill') THEN '00000000-0000-0000-0000-000000000000' ELSE id END))
    WHERE schedule_id IS NOT NULL;
-- One run by its id. Ids are in the order of time, so the index grows at its right end only.
CREATE INDEX history_id ON evertick.history (id);
-- The newest runs of an app for display, the oldest for pruning. `+ 0` hides the column from other queries: while a
-- partition is believed to be empty, the planner would take any index with a column of the search.
CREATE INDEX history_time ON evertick.history (app, (fire_at + 0));
-- Runs that ended more than a day after their moment, which are few: whether a day can be dropped is one index search.
CREATE INDEX history_late ON evertick.history (finished_at) WHERE finished_at >= fire_at + 86400000000;
-- Recent failures, for monitoring: few among many runs.
CREATE INDEX history_failed ON evertick.history (app, finished_at) WHERE verdict IN ('failed', 'lost');
-- Whether a run was rerun by hand, and the result. Only reruns are in it.
CREATE INDEX history_reruns ON evertick.history (app, caused_by) WHERE cause = 'rerun';

CREATE TABLE evertick.history_default PARTITION OF evertick.history DEFAULT
    WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

CREATE TABLE evertick.gaps (
    id           bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app          text    COLLATE "C" NOT NULL,
    schedule_id  bigint  NOT NULL,
    schedule_key text    COLLATE "C" NOT NULL,
    first_at     bigint  NOT NULL,
    last_at      bigint  NOT NULL,
    count        bigint  NOT NULL,
    is_exact     boolean NOT NULL,
    verdict      text    NOT NULL,
    reason       text    NOT NULL,
    recorded_at  bigint  NOT NULL
);
-- The newest gaps of an app, and the oldest for pruning.
CREATE INDEX gaps_time ON evertick.gaps (app, last_at);
-- The gaps of one schedule.
CREATE INDEX gaps_key ON evertick.gaps (app, schedule_key, last_at);

-- Earlier attempts: those that failed, and released or lost ones that had phases. The last attempt is in the run
-- itself. is_lost: recorded by the store, not reported by the node. Partitioned by the day of the run's moment, as are
-- history and log lines, so that all are dropped together.
CREATE TABLE evertick.attempts (
    app         text    COLLATE "C" NOT NULL,
    run         uuid    NOT NULL,
    fire_at     bigint  NOT NULL,
    number      integer NOT NULL,
    fence       bigint  NOT NULL,
    node        text,
    started_at  bigint,
    finished_at bigint  NOT NULL,
    error       text,
    reason      text,
    phases      text,
    is_lost     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, fence, fire_at)
) PARTITION BY RANGE (fire_at);
CREATE TABLE evertick.attempts_default PARTITION OF evertick.attempts DEFAULT;

-- Log lines in chunks: `seq` is the number of the chunk's first line among the lines of its attempt.
CREATE TABLE evertick.log_chunks (
    app     text    COLLATE "C" NOT NULL,
    run     uuid    NOT NULL,
    fire_at bigint  NOT NULL,
    fence   bigint  NOT NULL,
    seq     bigint  NOT NULL,
    count   integer NOT NULL,
    lines   text    NOT NULL,
    PRIMARY KEY (run, fence, seq, fire_at)
) PARTITION BY RANGE (fire_at);
CREATE TABLE evertick.log_chunks_default PARTITION OF evertick.log_chunks DEFAULT;

-- From which moment each app keeps its history: a day is dropped when no app in it keeps it any more.
CREATE TABLE evertick.kept_from (
    app    text   COLLATE "C" PRIMARY KEY,
    moment bigint NOT NULL
);

-- The tasks that live nodes know, and their limits ('': none).
CREATE TABLE evertick.tasks (
    app    text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    node   text COLLATE "C" NOT NULL,
    hash   text NOT NULL,
    limits text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (app, name, node)
);
CREATE INDEX tasks_node ON evertick.tasks (node);

-- Limits under which runs of a task may be blocked: those of its nodes, living or dead, until a node with other limits
-- has checked all blocked runs again.
CREATE TABLE evertick.held_under (
    app    text COLLATE "C" NOT NULL,
    task   text COLLATE "C" NOT NULL,
    limits text COLLATE "C" NOT NULL,
    PRIMARY KEY (app, task, limits)
);

-- Requests to nodes to check blocked runs again, with the last limit key that was checked ('': none). One row per
-- request, and not in `nodes`, so that no heartbeat and no declared death waits for the claim that checks.
CREATE TABLE evertick.looks (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node      text   COLLATE "C" NOT NULL,
    looked_at text   COLLATE "C" NOT NULL
);
CREATE INDEX looks_node ON evertick.looks (node);

-- Limit keys that have a time: when to release the next run of the key, and when that was set (a time in the future
-- there shows that the clock was put back).
CREATE TABLE evertick.limits (
    app     text   COLLATE "C" NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    free_at bigint NOT NULL,
    set_at  bigint NOT NULL,
    PRIMARY KEY (app, key)
);
CREATE INDEX limits_free ON evertick.limits (app, free_at);

-- Starts under a rate, by key, while they count: up to a thousand per period one row each, above that merged in rows
-- with the time of their last start.
CREATE TABLE evertick.grants (
    app   text   COLLATE "C" NOT NULL,
    key   text   COLLATE "C" NOT NULL,
    at    bigint NOT NULL,
    count bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (app, key, at)
);
CREATE INDEX grants_until ON evertick.grants (app, until);

-- Keys held for a period, whether their run is live or done. With its moment, which tells its partition of history.
CREATE TABLE evertick.unique_keys (
    app     text   COLLATE "C" NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    run     uuid   NOT NULL,
    fire_at bigint NOT NULL,
    until   bigint NOT NULL,
    PRIMARY KEY (app, key)
);
CREATE INDEX unique_keys_until ON evertick.unique_keys (app, until);

-- Named calendars. The greatest id of a name is its newest version.
CREATE TABLE evertick.calendars (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app     text   COLLATE "C" NOT NULL,
    name    text   COLLATE "C" NOT NULL,
    version text   NOT NULL,
    content bytea  NOT NULL,
    put_at  bigint NOT NULL,
    UNIQUE (app, name, version)
);

CREATE TABLE evertick.nodes (
    id          text   COLLATE "C" PRIMARY KEY,
    name        text   NOT NULL,
    app         text   COLLATE "C" NOT NULL,
    version     text   NOT NULL,
    started_at  bigint NOT NULL,
    beat_at     bigint NOT NULL,
    lease       bigint NOT NULL,
    lease_until bigint NOT NULL,
    died_at     bigint,
    queues      text   NOT NULL,
    -- The channels whose messages it delivers.
    channels    text   NOT NULL DEFAULT '[]',
    -- Tasks that it knows but leaves to nodes with their drivers.
    leaves      text   NOT NULL DEFAULT '{}',
    declares    text   NOT NULL,
    -- When its loops last stepped and will step next, as reported by its last heartbeat.
    ticks       text
) WITH (fillfactor = 50);

-- Duties: work that one node does at a time. Held until the node dies or resigns (NULL). The row without a name keeps
-- the greatest pruned term, so that no term is used twice.
CREATE TABLE evertick.duties (
    app       text   COLLATE "C" NOT NULL,
    name      text   COLLATE "C" NOT NULL,
    node      text   COLLATE "C",
    term      bigint NOT NULL,
    since     bigint NOT NULL,
    ticked_at bigint,
    next_at   bigint,
    error     text,
    PRIMARY KEY (app, name)
) WITH (fillfactor = 50);

-- Messages to other systems, written in the transaction of the change that causes them. A message has `claimed_at`
-- while a node sends it. (node, fence) stay after that, so that a repeated outcome gets the answer "already". Sent and
-- dead messages have `forget_at`, until which their keys are known.
CREATE TABLE evertick.outbox (
    id         uuid    PRIMARY KEY,
    app        text    COLLATE "C" NOT NULL,
    channel    text    COLLATE "C" NOT NULL,
    key        text    COLLATE "C" NOT NULL,
    body       text    NOT NULL,
    headers    text,
    state      text    NOT NULL,
    attempts   integer NOT NULL DEFAULT 0,
    due_at     bigint  NOT NULL,
    created_at bigint  NOT NULL,
    node       text    COLLATE "C",
    fence      bigint,
    claimed_at bigint,
    settled_at bigint,
    forget_at  bigint,
    error      text,
    caused_by  text,
    -- The fence under which it dispatches the run that causes it.
    dispatches bigint,
    format     integer NOT NULL DEFAULT 1
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0);
-- A key names one message.
CREATE UNIQUE INDEX outbox_key ON evertick.outbox (app, channel, key);
-- The claim; and messages that are being sent.
CREATE INDEX outbox_waiting ON evertick.outbox (app, channel, due_at) WHERE state = 'waiting';
CREATE INDEX outbox_sending ON evertick.outbox (app, channel, node) WHERE state = 'sending';
-- Messages that failed and are tried again. A message that is sent at the first attempt is not in it.
CREATE INDEX outbox_failing ON evertick.outbox (app, channel, created_at)
    WHERE state IN ('waiting', 'sending') AND attempts > 0;
-- For display, and for the doctor.
CREATE INDEX outbox_dead ON evertick.outbox (app, channel) WHERE state = 'dead';
-- Pruning.
CREATE INDEX outbox_forget ON evertick.outbox (app, forget_at) WHERE forget_at IS NOT NULL;

-- Apps whose events are kept. An epoch is a sequence of events without gaps; events up to the pruned one are deleted.
-- `cluster` is the server by whose transaction ids they are ordered: another server, after a restore, starts from other
-- ids.
CREATE TABLE evertick.feeds (
    app         text   COLLATE "C" PRIMARY KEY,
    epoch       text   COLLATE "C" NOT NULL,
    kept        bigint NOT NULL,
    cluster     bigint NOT NULL,
    pruned_txid xid8   NOT NULL DEFAULT '0',
    pruned_seq  bigint NOT NULL DEFAULT 0
);

-- Events: one row has many of one kind from one transaction. Read in the order of transactions, below all open ones:
-- `seq` is given before the commit, so a reader by `seq` alone would miss a row that is committed late.
CREATE TABLE evertick.feed (
    app   text   COLLATE "C" NOT NULL,
    epoch text   COLLATE "C" NOT NULL,
    txid  xid8   NOT NULL DEFAULT pg_current_xact_id(),
    seq   bigint GENERATED ALWAYS AS IDENTITY,
    at    bigint NOT NULL,
    kind  text   NOT NULL,
    body  text   NOT NULL,
    PRIMARY KEY (app, epoch, txid, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.05);
-- Half the cost of a row is its compression by the default method. Not every server has the faster one.
DO $$ BEGIN
    ALTER TABLE evertick.feed ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;
