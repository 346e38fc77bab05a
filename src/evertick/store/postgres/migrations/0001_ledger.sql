-- compatible_from: 1
-- The first tables. Times and durations are bigint microseconds; what people wrote is JSON text. `evertick` stands for
-- the schema of the store and is put in when the file is read. No foreign keys: the ledger outlives the schedules and
-- nodes it speaks of. Names sort by their bytes (COLLATE "C"), as Python sorts them.
--
-- Autovacuum by a number of rows, not by a share: live tables are emptied and filled all day, and a share of nearly
-- nothing or of nearly everything would come too often or too late.

-- The store's time, one function for all guards: always as `(SELECT evertick.now_us())`, which an index can be searched
-- by; a bare volatile call cannot.
CREATE FUNCTION evertick.now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Which store this is, which migration it has reached, and the oldest code that may still use it.
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

-- One sequence for all claims: a greater fence is a later claim, across runs and apps. No cache: that would give a
-- connection numbers in advance.
CREATE SEQUENCE evertick.fence CACHE 1;

CREATE TABLE evertick.schedules (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app         text   COLLATE "C" NOT NULL,
    key         text   COLLATE "C" NOT NULL,
    created_at  bigint NOT NULL,
    format      integer NOT NULL,
    definition  text   NOT NULL,
    -- Out of the definition, to be filtered by.
    labels      jsonb,
    pause_after integer,
    when_text   text   NOT NULL DEFAULT '',
    blackout    text,
    pause       text,
    -- Decisions about single moments to come; NULL for nearly all.
    occurrences text,
    declared    text,
    UNIQUE (app, key)
);
-- The few schedules that pause themselves: looked at by every sweep.
CREATE INDEX schedules_pause_after ON evertick.schedules (app, id) WHERE pause_after IS NOT NULL;
-- Those that code declares, however many others there are: the same.
CREATE INDEX schedules_declared ON evertick.schedules (app, key) WHERE declared IS NOT NULL;

-- A definition as it was from a version on. Kept after removal, so that old runs can show their arguments.
CREATE TABLE evertick.schedule_versions (
    app         text    COLLATE "C" NOT NULL,
    key         text    COLLATE "C" NOT NULL,
    schedule_id bigint  NOT NULL,
    version     integer NOT NULL,
    definition  text    NOT NULL,
    args        text    NOT NULL,
    PRIMARY KEY (app, key, schedule_id, version)
);
-- The arguments of a run, by the schedule alone.
CREATE INDEX schedule_versions_id ON evertick.schedule_versions (schedule_id, version DESC);

-- The cursor, narrow because every fire writes it, with room on its pages for the next version of each row. Its version
-- is the version of the schedule.
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
-- The tick: who is due, longest due first.
CREATE INDEX due_at ON evertick.due (app, at, schedule_id) WHERE at IS NOT NULL;
-- Pruning: schedules that will never fire again. Nearly empty.
CREATE INDEX due_finished ON evertick.due (app, schedule_id)
    WHERE fire_at IS NULL AND at IS NULL AND after_end IS NULL;

-- Live runs only. A waiting run that was held before keeps the (node, fence) that put it back: so that owner, whose
-- answer was lost, can be told "already". The next claim overwrites them. A run has `started_at` while it is held.
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
    -- Its end concerns others: a run is blocked on it, or its schedule counts from the end. Such a run ends under the
    -- lock of its schedule's row in `due`; all others end without a look at anything else.
    frees               boolean NOT NULL DEFAULT false,
    -- Of a dispatched run, which nobody here holds: what was agreed; when it was dispatched, when the queue had its message,
    -- when a worker took it, when that was told to stop. `deadline` is then when to look at it.
    dispatch                text,
    dispatched_at           bigint,
    pushed_at           bigint,
    taken_at            bigint,
    killed_at           bigint,
    -- Nodes that cannot read it leave it alone.
    format              integer NOT NULL DEFAULT 1
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
-- At most one run per nominal moment; triggers and reruns of it are told apart by their id. Also finds the live runs of
-- a schedule, newest moment last.
CREATE UNIQUE INDEX runs_moment
    ON evertick.runs (schedule_id, fire_at, (
        CASE WHEN cause IN ('fire', 'backfill') THEN '00000000-0000-0000-0000-000000000000' ELSE id END))
    WHERE schedule_id IS NOT NULL;
-- The claim. With the task in it, runs for other nodes are passed over without reading their rows.
CREATE INDEX runs_claim ON evertick.runs (app, queue, priority DESC, due_at, task) WHERE state = 'waiting';
-- Which of them are too old to start.
CREATE INDEX runs_expiring ON evertick.runs (app, (due_at + expires)) WHERE state = 'waiting' AND expires IS NOT NULL;
-- What a node holds: its beat, reconciling, re-homing.
CREATE INDEX runs_running ON evertick.runs (app, node) WHERE state = 'running';
-- What should have stopped long ago, whoever holds it; nothing for tasks without a timeout.
CREATE INDEX runs_deadline ON evertick.runs (app, deadline) WHERE state = 'running' AND deadline IS NOT NULL;
-- One live run per unique key.
CREATE UNIQUE INDEX runs_unique ON evertick.runs (app, unique_key) WHERE unique_key IS NOT NULL;
-- What a verdict frees, and whether a schedule has one queued.
CREATE INDEX runs_blocked ON evertick.runs (app, schedule_id, blocked_on) WHERE state = 'blocked';
-- What is in the hands of an outside queue, and which of that is to be looked at.
CREATE INDEX runs_dispatched ON evertick.runs (app, deadline) WHERE state = 'dispatched';
-- Of these, those to be cancelled: anybody may see to them, also while nobody hears of the others.
CREATE INDEX runs_unwanted ON evertick.runs (app, deadline) WHERE state = 'dispatched' AND is_cancel_requested;
-- What runs under a limit, here or in other hands, counted by its key at the claim; nothing for tasks without one.
CREATE INDEX runs_limited ON evertick.runs (app, limit_key)
    WHERE state IN ('running', 'dispatched') AND limit_key IS NOT NULL;
-- What waits for a limit, best first of each task and queue; and what was let through for one and is not claimed yet.
CREATE INDEX runs_held_back ON evertick.runs (app, limit_key, task, queue, priority DESC, due_at)
    WHERE state = 'blocked' AND limit_key IS NOT NULL;
CREATE INDEX runs_let_through ON evertick.runs (app, limit_key, task, queue)
    WHERE state = 'waiting' AND limit_key IS NOT NULL;
-- Runs that are for one node alone, in its own queue: what is left of them when it is gone. No others are in it.
CREATE INDEX runs_bound ON evertick.runs (app, queue) WHERE queue >= '@' AND queue < 'A';
-- What a node frees when it comes.
CREATE INDEX runs_parked ON evertick.runs (app, task) WHERE state = 'parked';
-- Whether a run was run again by hand. Only reruns are in it.
CREATE INDEX runs_reruns ON evertick.runs (app, caused_by) WHERE cause = 'rerun';

-- Runs that are done, by the day of their moment. What has no partition of its day yet is in the default one.
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
    -- Of a run that ended in other hands: what was agreed, and in whose.
    dispatch                text
) PARTITION BY RANGE (fire_at);
-- A moment that has run does not run again; also the runs of one schedule by time.
CREATE UNIQUE INDEX history_moment
    ON evertick.history (schedule_id, fire_at, (
        CASE WHEN cause IN ('fire', 'backfill') THEN '00000000-0000-0000-0000-000000000000' ELSE id END))
    WHERE schedule_id IS NOT NULL;
-- One run, by whoever knows its id. Ids come in the order of time, so it grows at its right end only.
CREATE INDEX history_id ON evertick.history (id);
-- The newest runs of an app for people, the oldest for pruning. `+ 0`, so that nobody gets it who does not ask for it:
-- while a day is believed to be empty, any index that has a column of a search looks as good as the right one.
CREATE INDEX history_time ON evertick.history (app, (fire_at + 0));
-- The few runs that ended more than a day after their moment: whether a day can be dropped is one look at these.
CREATE INDEX history_late ON evertick.history (finished_at) WHERE finished_at >= fire_at + 86400000000;
-- What went wrong of late, for those who watch: the few among the many.
CREATE INDEX history_failed ON evertick.history (app, finished_at) WHERE verdict IN ('failed', 'lost');
-- Whether a run was run again by hand, and what came of that. Only reruns are in it.
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

-- Earlier tries; the last one is in the run itself. Those that failed, and those that were cut off and had phases. is_lost:
-- the store's own word, not that of the node. By the day of the run's moment, as history is, so that both go
-- together; the same holds for log lines.
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

-- Log lines as they came: `seq` is the number of the first line of the chunk among the lines of its attempt.
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

-- From which moment on each app keeps its history: a day goes as a whole when none of the apps in it keeps it any more.
CREATE TABLE evertick.kept_from (
    app    text   COLLATE "C" PRIMARY KEY,
    moment bigint NOT NULL
);

-- What live nodes know, and under which limits ('': none).
CREATE TABLE evertick.tasks (
    app    text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    node   text COLLATE "C" NOT NULL,
    hash   text NOT NULL,
    limits text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (app, name, node)
);
CREATE INDEX tasks_node ON evertick.tasks (node);

-- Limits that runs of a task may be held back under: those of its nodes, living or dead, until one with others has looked
-- again at all that is held back.
CREATE TABLE evertick.held_under (
    app    text COLLATE "C" NOT NULL,
    task   text COLLATE "C" NOT NULL,
    limits text COLLATE "C" NOT NULL,
    PRIMARY KEY (app, task, limits)
);

-- Nodes that have to look again at what limits hold back, and the last key that they have looked at ('': none). A row
-- for each time that they were asked to, and beside `nodes`: neither a beat nor a judge waits for the claim that looks.
CREATE TABLE evertick.looks (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node      text   COLLATE "C" NOT NULL,
    looked_at text   COLLATE "C" NOT NULL
);
CREATE INDEX looks_node ON evertick.looks (node);

-- Keys of limits that something waits for by time: when to let the next of that key through, and when that was set (a
-- time to come there shows that the clock was put back).
CREATE TABLE evertick.limits (
    app     text   COLLATE "C" NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    free_at bigint NOT NULL,
    set_at  bigint NOT NULL,
    PRIMARY KEY (app, key)
);
CREATE INDEX limits_free ON evertick.limits (app, free_at);

-- Starts under a rate, by key, while they count: up to a thousand per period each with its time, above that gathered in
-- rows whose time is that of their last start.
CREATE TABLE evertick.grants (
    app   text   COLLATE "C" NOT NULL,
    key   text   COLLATE "C" NOT NULL,
    at    bigint NOT NULL,
    count bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (app, key, at)
);
CREATE INDEX grants_until ON evertick.grants (app, until);

-- Keys that are unique for a period, whether their run is live or not; with its moment, which says where it is in history.
CREATE TABLE evertick.unique_keys (
    app     text   COLLATE "C" NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    run     uuid   NOT NULL,
    fire_at bigint NOT NULL,
    until   bigint NOT NULL,
    PRIMARY KEY (app, key)
);
CREATE INDEX unique_keys_until ON evertick.unique_keys (app, until);

-- Named calendars; the greatest id of a name is its newest version.
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
    -- The channels of messages that it hands to the outside.
    channels    text   NOT NULL DEFAULT '[]',
    -- Tasks that it knows and leaves to nodes with their drivers.
    leaves      text   NOT NULL DEFAULT '{}',
    declares    text   NOT NULL,
    -- When its loops have stepped and will step, as it said with its last beat.
    ticks       text
) WITH (fillfactor = 50);

-- Work that one node does at a time. Held while its node lives and has not resigned (NULL). The row without a name keeps
-- the greatest term of those that were forgotten, so that no term ever comes twice.
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

-- What is to be dispatched to the outside, written in the transaction that causes it. A message has `claimed_at` while a
-- node sends it; (node, fence) stay after that, so that an owner whose answer was lost can be told "already". Sent and
-- dead ones have `forget_at`, until which their keys are known.
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
-- The same key again is the same message.
CREATE UNIQUE INDEX outbox_key ON evertick.outbox (app, channel, key);
-- The claim; and what is on its way.
CREATE INDEX outbox_waiting ON evertick.outbox (app, channel, due_at) WHERE state = 'waiting';
CREATE INDEX outbox_sending ON evertick.outbox (app, channel, node) WHERE state = 'sending';
-- What was tried in vain and is tried again: nothing is written here for a message that goes through at once.
CREATE INDEX outbox_failing ON evertick.outbox (app, channel, created_at)
    WHERE state IN ('waiting', 'sending') AND attempts > 0;
-- For people, and for the doctor.
CREATE INDEX outbox_dead ON evertick.outbox (app, channel) WHERE state = 'dead';
-- Pruning.
CREATE INDEX outbox_forget ON evertick.outbox (app, forget_at) WHERE forget_at IS NOT NULL;

-- Apps whose events are kept for other programs. An epoch is a stretch of events without a hole; those up to the pruned
-- one are kept no longer. `cluster` is the server whose transactions they are ordered by: in another one, after a
-- restore, transactions are counted anew.
CREATE TABLE evertick.feeds (
    app         text   COLLATE "C" PRIMARY KEY,
    epoch       text   COLLATE "C" NOT NULL,
    kept        bigint NOT NULL,
    cluster     bigint NOT NULL,
    pruned_txid xid8   NOT NULL DEFAULT '0',
    pruned_seq  bigint NOT NULL DEFAULT 0
);

-- What happened, many facts of one kind and one transaction in a row. Read by transaction, below all that are still
-- open: `seq` alone is given before the commit, and a reader would pass by a row that is committed late.
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
-- Half of what a row costs is its compression by the default method; not every server has the quicker one.
DO $$ BEGIN
    ALTER TABLE evertick.feed ALTER COLUMN body SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;
