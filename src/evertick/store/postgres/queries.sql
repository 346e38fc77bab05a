-- The statements of the PostgreSQL store. A block is named after the intent that uses it, with a word for its part if
-- the intent has several; a block of several intents is named after its effect. `@name` in a statement is replaced by
-- the part of that name, and the schema `evertick` by the store's schema, when the file is read.
--
-- Rules for all statements (READ COMMITTED):
--
-- * A statement sees rows that were committed before it began. After waiting for a row lock it sees the newest version
--   of that row, but every other row as of its beginning. So a guard may check its own row. A guard that checks another
--   table needs two statements: the first takes the lock, the second checks.
-- * Locks are taken in one order: unique keys, the limits gate, rows of `due` by schedule, rows of `runs` by id, rows
--   of the outbox. Rows to lock are searched before the first lock. A run may get a limit or the mark `frees` after
--   that search: a transaction that then needs the gate rolls back and starts again; one that needs a schedule locks it
--   late. A wrong order ends in a deadlock, and the transaction starts again. SKIP LOCKED is allowed anywhere, and so
--   is the insert of a row that no other session can know.
-- * Runs of a schedule are inserted under the lock of its row in `due`, and the same transaction writes that row. While
--   its `xmin` (the stamp) is unchanged, no run was added. A run with `frees` ends under that lock too. No run can be
--   blocked on a run without `frees`: the mark is set first, and setting it waits for a transaction that ends the run.
-- * Batches are arrays, joined to the table by its primary key. Such a guard does not compare `state` (`started_at IS
--   NOT NULL` means the same for a claimed run), so that the planner uses the primary key and no partial index. The
--   join is `r.id = ANY(ARRAY[t.id])`, which can only be an index search per element. A cached plan that was made for
--   an empty table would otherwise compare every row of the table with every element.
-- * Where the id finds a row of history or the outbox, the app is compared by IS NOT DISTINCT FROM, which no index
--   supports. While the planner takes a table for empty, it would otherwise choose any index that begins with the app.
-- * OFFSET 0 in an EXISTS stops the planner from hashing the whole table, which it does when it takes a table for
--   empty.

-- ================================================================================================= parts

-- part: live
-- Live runs of a schedule `d`, for overlap: bit 0: there is one; bit 1: one is blocked on another run; bit 2: all are
-- parked or blocked on another run. Most schedules have none, which costs one index search.
(CASE WHEN NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = d.schedule_id OFFSET 0) THEN 0
    ELSE 1 + 2 * (EXISTS (SELECT FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.app = d.app AND r.schedule_id = d.schedule_id AND r.blocked_on IS NOT NULL
        OFFSET 0))::int
    + 4 * (NOT EXISTS (SELECT FROM evertick.runs r
        WHERE r.schedule_id = d.schedule_id
            AND r.state <> 'parked' AND NOT (r.state = 'blocked' AND r.blocked_on IS NOT NULL) OFFSET 0))::int END)

-- part: stored
-- Definition and cursor of a schedule, from `s` and `d`.
s.id, s.key, d.version, s.created_at, s.definition, s.pause, s.occurrences, s.declared, d.fire_at, d.at, d.fires,
    d.failures, d.error, d.fingerprint, @live AS live, d.xmin AS stamp

-- part: args
-- Arguments of a run `r`: its own, or those of the schedule version under which it was recorded.
coalesce(r.args, (
    SELECT v.args FROM evertick.schedule_versions v
    WHERE v.schedule_id = r.schedule_id AND v.version <= r.version ORDER BY v.version DESC LIMIT 1))

-- part: readable
-- A run `r` in a format that this code can read; newer formats are left to newer nodes.
r.format <= 1

-- part: readable_message
-- The same for a message `m`.
m.format <= 1

-- part: live_run
-- A live run `r` for display.
r.id::text AS id, r.app, r.schedule_key, r.task, @args AS args, NULL AS schedule_args,
    r.fire_at, r.due_at, r.state, NULL::text AS verdict,
    r.reason, r.parked_for, r.cause, r.attempts, r.losses, r.queue, r.priority, r.labels::text AS labels, r.created_at, r.started_at,
    NULL::bigint AS finished_at, r.expires, r.node, r.fence, NULL::text AS result, r.error, r.progress, r.progress_text,
    r.phases, r.blocked_on::text AS blocked_on, r.limit_key, r.caused_by, r.is_cancel_requested, r.format, r.dispatch,
    r.dispatched_at, r.pushed_at, r.taken_at, r.deadline

-- part: done_run
-- A run `r` in history for display.
r.id::text AS id, r.app, r.schedule_key, r.task, @args AS args, NULL AS schedule_args,
    r.fire_at, r.due_at, 'done' AS state, r.verdict,
    r.reason, NULL::text AS parked_for, r.cause, r.attempts, r.losses, r.queue, r.priority, r.labels::text AS labels, r.created_at,
    r.started_at, r.finished_at, r.expires, r.node, r.fence, r.result, r.error, r.progress, r.progress_text,
    r.phases, NULL::text AS blocked_on, NULL::text AS limit_key, r.caused_by, r.is_cancel_requested, 1 AS format, r.dispatch

-- part: began
-- When a run began. For a dispatched run: when a worker took it, or the nearest known time before that.
coalesce(started_at, taken_at, pushed_at, dispatched_at)

-- part: not_dispatched
-- Clears the columns of a run that is no longer dispatched.
dispatch = NULL, dispatched_at = NULL, pushed_at = NULL, taken_at = NULL, killed_at = NULL

-- part: claimed_run
-- A run `r` for the node that claims it.
r.id::text AS id, r.task, @args AS args, r.fire_at, r.due_at, r.attempts, r.losses, r.schedule_id, r.schedule_key,
    r.cause, r.queue, r.priority, r.labels::text AS labels, r.traceparent, r.expires, r.limit_key, r.unique_until

-- part: feed_epoch
-- The epoch of the feed of an app; NULL if it has none. Uncorrelated, so it is evaluated once per statement, and a
-- filter `IS NOT NULL` on it skips the work that follows.
(SELECT f.epoch FROM evertick.feeds f WHERE f.app = $1)

-- ================================================================================================= shared

-- name: now
-- The store's time.
SELECT evertick.now_us() AS now;

-- name: schedule.lock
-- First statement of a change whose guard checks other tables. Locks in order, so that no two sessions deadlock.
SELECT count(*) AS count FROM (
    SELECT FROM evertick.due WHERE schedule_id = ANY($1::bigint[]) ORDER BY schedule_id FOR UPDATE) l;

-- name: schedule.keys
-- The keys of schedules, for users.
SELECT key FROM evertick.schedules WHERE app = $1 AND id = ANY($2::bigint[]) ORDER BY key;

-- name: schedule.live_runs
-- All live runs of locked schedules: until the commit no run can be added or change its state.
SELECT id::text AS id, state FROM evertick.runs WHERE schedule_id = ANY($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: change_schedules.give_up_untaken
-- Removed schedules, locked: request the cancel of dispatched runs that no worker has taken.
UPDATE evertick.runs
SET is_cancel_requested = true, cancel_reason = $2, deadline = (SELECT evertick.now_us())
WHERE id = ANY($1::uuid[]) AND dispatched_at IS NOT NULL AND taken_at IS NULL AND NOT is_cancel_requested;

-- name: schedule.mark_frees
-- The end of these runs affects others from now on. Waits for a transaction that ends one of them.
UPDATE evertick.runs SET frees = true WHERE id = ANY(ARRAY(
    SELECT id FROM evertick.runs WHERE schedule_id = ANY($1::bigint[]) AND NOT frees ORDER BY id FOR UPDATE));

-- name: schedule.count_from_end
-- Cursor of an after-end rule: none while a run is live, otherwise that long after now. A statement of its own under
-- the lock: if the last two runs end at the same time, the second transaction sees that the first run has ended.
UPDATE evertick.due d SET (fire_at, at) = (
    SELECT next, next FROM (SELECT CASE WHEN NOT EXISTS (
        SELECT FROM evertick.runs r WHERE r.schedule_id = d.schedule_id OFFSET 0)
        THEN (SELECT evertick.now_us()) + d.after_end END AS next) n)
WHERE d.schedule_id = ANY($1::bigint[]) AND d.after_end IS NOT NULL
    AND EXISTS (SELECT FROM evertick.schedules s WHERE s.id = d.schedule_id AND s.pause IS NULL);

-- name: schedule.has_limited
-- Whether the end of a live run of these schedules may release a run that is blocked by a limit.
SELECT EXISTS (
    SELECT FROM evertick.runs WHERE schedule_id = ANY($1::bigint[]) AND limit_key IS NOT NULL) AS has_limited;

-- part: known
-- New runs ($4) that the ledger has already, live or done, in one snapshot, so that a run that moves from one table to
-- the other is found. $2 and $3 bound the moments, and so the partitions that are read. One search for all ids, because
-- new ids are all at the right end of the indexes.
known AS MATERIALIZED (
    SELECT l.id FROM evertick.runs l WHERE l.id = ANY($4::uuid[])
    UNION ALL
    SELECT h.id FROM evertick.history h WHERE h.id = ANY($4::uuid[]) AND h.fire_at BETWEEN $2 AND $3)

-- part: insert_new
-- Insert runs, except those whose id or moment the ledger has already. A blocked run waits for the last run of its
-- schedule's line, the newest live run that no run is blocked on; otherwise two would start when it ends. Claimed runs
-- are inserted as running under one fence, drawn after the locks were taken, unless the node is dead.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
claimant AS MATERIALIZED (
    SELECT k.id AS node, coalesce($6::bigint, nextval('evertick.fence')) AS fence FROM evertick.nodes k
    WHERE k.id = $5 AND k.died_at IS NULL),
@known,
inserted AS (
    INSERT INTO evertick.runs AS r (app, id, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, state, reason, args, labels, expires, unique_key, unique_until, caused_by, traceparent, created_at,
        node, fence, started_at, deadline, at_most_once, blocked_on, frees, format)
    SELECT $1, n.id, n.schedule_id, s.key, n.version, coalesce(n.task, ($9::text[])[1]), n.cause, n.fire_at,
        coalesce(n.due_at, n.fire_at), coalesce(n.queue, 'default'), coalesce(n.priority, 0),
        CASE WHEN b.id IS NOT NULL THEN 'blocked' WHEN c.fence IS NOT NULL THEN 'running' ELSE 'waiting' END,
        n.reason, n.args, n.labels::jsonb, n.expires, n.unique_key, n.unique_until, n.caused_by, n.traceparent, n.now,
        c.node, c.fence, CASE WHEN c.fence IS NOT NULL THEN n.now END,
        CASE WHEN c.fence IS NOT NULL THEN n.now + n.timeout END,
        c.fence IS NOT NULL AND coalesce(n.at_most_once, false), b.id, coalesce(n.frees, false), coalesce(n.format, 1)
    FROM (
        SELECT w.*, t.now, coalesce(w.moment, t.now + coalesce(w.delay, 0)) AS fire_at,
            coalesce(w.given_cause, ($10::text[])[1]) AS cause
        FROM unnest($4::uuid[], $7::bigint[], $8::int[], $9::text[], $10::text[], $11::bigint[], $12::bigint[],
            $13::bigint[], $14::text[], $15::bigint[], $16::bool[], $17::text[], $18::text[], $19::text[],
            $20::bigint[], $21::text[], $22::text[], $23::text[], $24::text[], $25::bool[], $26::bigint[], $27::bool[],
            $28::bool[], $29::int[])
            AS w(id, schedule_id, version, task, given_cause, moment, due_at, delay, queue, priority, is_blocked, reason,
                args, labels, expires, unique_key, unique_until, caused_by, traceparent, is_claimed, timeout,
                at_most_once, frees, format)
        CROSS JOIN clock t) n
    LEFT JOIN evertick.schedules s ON s.id = ANY(ARRAY[n.schedule_id])
    LEFT JOIN LATERAL (
        SELECT l.id FROM evertick.runs l WHERE n.is_blocked AND l.schedule_id = n.schedule_id AND NOT EXISTS (
            SELECT FROM evertick.runs w
            WHERE w.state = 'blocked' AND w.app = $1 AND w.schedule_id = n.schedule_id AND w.blocked_on = l.id OFFSET 0)
        ORDER BY l.fire_at DESC, l.id DESC LIMIT 1) b ON true
    LEFT JOIN claimant c ON n.is_claimed AND b.id IS NULL
    WHERE CASE WHEN n.schedule_id IS NOT NULL AND n.cause IN ('fire', 'backfill')
        THEN NOT EXISTS (SELECT FROM evertick.runs l
                WHERE l.schedule_id = n.schedule_id AND l.fire_at = n.fire_at AND l.cause IN ('fire', 'backfill')
                OFFSET 0)
            AND NOT EXISTS (SELECT FROM evertick.history h
                WHERE h.schedule_id = n.schedule_id AND h.fire_at = n.fire_at AND h.cause IN ('fire', 'backfill')
                    AND h.fire_at BETWEEN $2 AND $3 OFFSET 0)
        ELSE n.id NOT IN (SELECT id FROM known) END

-- part: insert_enqueued
-- The same for runs without a schedule and without a claim, which are most enqueued runs. Often one at a time: then the
-- cost is the planning of what a statement could do, so this one does less.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
@known,
inserted AS (
    INSERT INTO evertick.runs (app, id, task, cause, fire_at, due_at, queue, priority, state, reason, args, labels,
        expires, unique_key, unique_until, caused_by, traceparent, created_at, format)
    SELECT $1, n.id, coalesce(n.task, ($5::text[])[1]), coalesce(n.cause, ($6::text[])[1]), n.fire_at,
        coalesce(n.due_at, n.fire_at), coalesce(n.queue, 'default'), coalesce(n.priority, 0), 'waiting', n.reason, n.args,
        n.labels::jsonb, n.expires, n.unique_key, n.unique_until, n.caused_by, n.traceparent, n.now, coalesce(n.format, 1)
    FROM (
        SELECT w.*, t.now, coalesce(w.moment, t.now + coalesce(w.delay, 0)) AS fire_at
        FROM unnest($4::uuid[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[],
            $11::bigint[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::text[], $17::text[], $18::text[],
            $19::text[], $20::int[])
            AS w(id, task, cause, moment, due_at, delay, queue, priority, reason, args, labels, expires, unique_key,
                unique_until, caused_by, traceparent, format)
        CROSS JOIN clock t) n
    WHERE n.id NOT IN (SELECT id FROM known)

-- part: new_events
-- Their feed event.
    RETURNING id, schedule_key, task, fire_at, due_at, cause, reason, node, fence),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT now FROM clock), 'run.recorded', json_agg(json_build_array(i.id, i.schedule_key,
        i.task, i.fire_at, i.due_at, i.cause, NULL, i.reason, 0, i.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM inserted) i
    WHERE @feed_epoch IS NOT NULL GROUP BY i.part)

-- part: answer_new
-- Returns the ids only if some are missing.
SELECT (SELECT now FROM clock) AS now, max(fence) AS fence, count(*) > count(fence) AS has_waiting,
    CASE WHEN count(*) < cardinality($4) THEN coalesce(array_agg(id::text), '{}') END AS ids
FROM inserted

-- name: insert_runs
-- Fails if another session inserts one of them at the same time.
@insert_new @new_events @answer_new;

-- name: insert_runs.carefully
-- Leaves such a run out instead. Costs a fifth more time and a tenth more WAL.
@insert_new ON CONFLICT DO NOTHING @new_events @answer_new;

-- name: insert_enqueued
-- `insert_runs` for enqueued runs.
@insert_enqueued @new_events @answer_new;

-- name: insert_enqueued.carefully
-- `insert_runs.carefully` for enqueued runs.
@insert_enqueued ON CONFLICT DO NOTHING @new_events @answer_new;

-- name: insert_one
-- One run without a unique key, the most frequent enqueue: no arrays, so no cost to set them up and to count. Sends a
-- notification ($19, $20), if there is one. Fails if another session inserts the run at the same time.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
inserted AS (
    INSERT INTO evertick.runs (app, id, task, cause, fire_at, due_at, queue, priority, state, reason, args, labels,
        expires, caused_by, traceparent, created_at, format)
    SELECT $1, $4::uuid, $5::text, $6::text, n.fire_at, coalesce($8::bigint, n.fire_at), $10::text, $11::bigint,
        'waiting', $12::text, $13::text, $14::text::jsonb, $15::bigint, $16::text, $17::text, n.now, $18::int
    FROM (SELECT t.now, coalesce($7::bigint, t.now + $9::bigint) AS fire_at FROM clock t) n
    WHERE NOT EXISTS (SELECT FROM evertick.runs l WHERE l.id = $4 OFFSET 0)
        AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.id = $4 AND h.fire_at BETWEEN $2 AND $3 OFFSET 0)
    RETURNING id, task, fire_at, due_at, cause, reason),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT now FROM clock), 'run.recorded', json_build_array(json_build_array(i.id, NULL,
        i.task, i.fire_at, i.due_at, i.cause, NULL, i.reason, 0, NULL))::text
    FROM inserted i WHERE @feed_epoch IS NOT NULL)
SELECT (SELECT now FROM clock) AS now, EXISTS (SELECT FROM inserted) AS is_new,
    CASE WHEN $19::text IS NOT NULL THEN pg_notify($19, $20::text) END AS woken;

-- name: run.to_lock
-- Locks needed before these runs: the gate, if one of them has a limit key, and the schedules of those with `frees`.
SELECT coalesce(bool_or(limit_key IS NOT NULL), false) AS has_limited,
    coalesce(array_agg(DISTINCT schedule_id) FILTER (WHERE frees AND schedule_id IS NOT NULL), '{}') AS schedules
FROM evertick.runs WHERE id = ANY($1::uuid[]);

-- name: run.lock
-- Lock runs, in order.
SELECT id::text AS id, state, schedule_id, node, fence, attempts, is_cancel_requested, cancel_reason, frees, limit_key,
    @feed_epoch IS NOT NULL AS has_feed
FROM evertick.runs WHERE app = $1 AND id = ANY($2::uuid[]) ORDER BY id FOR UPDATE;

-- name: run.leave_line
-- Before blocked runs end: the run behind one in the line becomes blocked on the run before it. If several neighbours
-- leave the line, on the run before the first of them. Needs the locks of their schedules.
WITH RECURSIVE leaving AS MATERIALIZED (
    SELECT r.id, r.schedule_id, r.blocked_on FROM evertick.runs r
    WHERE r.id = ANY($2::uuid[]) AND r.app = $1 AND r.schedule_id IS NOT NULL AND r.blocked_on IS NOT NULL),
behind(id, blocked_on) AS (
    SELECT r.id, l.blocked_on FROM leaving l
    JOIN evertick.runs r ON r.state = 'blocked' AND r.app = $1 AND r.schedule_id = l.schedule_id AND r.blocked_on = l.id
    WHERE r.id NOT IN (SELECT id FROM leaving)
    UNION ALL
    SELECT b.id, l.blocked_on FROM behind b JOIN evertick.runs l ON l.id = b.blocked_on
    WHERE (l.id IN (SELECT id FROM leaving)) IS TRUE)
UPDATE evertick.runs r SET blocked_on = b.blocked_on FROM behind b
WHERE r.id = b.id AND b.blocked_on NOT IN (SELECT id FROM leaving);

-- name: run.end
-- End live runs without a claim, into history. The error of an earlier attempt is kept. Second line of defence: a
-- moment that history has already is not written twice.
WITH ended AS (
    DELETE FROM evertick.runs r
    USING unnest($2::uuid[], $3::text[], $4::text[]) AS t(id, verdict, reason)
    WHERE r.id = ANY(ARRAY[t.id]) AND r.app = $1
    RETURNING r.*, t.verdict, t.reason AS given_reason),
kept AS (
    INSERT INTO evertick.history (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, verdict, reason, args, labels, expires, caused_by, traceparent, attempts, losses, node, fence,
        created_at, started_at, finished_at, is_cancel_requested, cancel_reason, progress, progress_text, phases, error,
        dispatch)
    SELECT id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, verdict, coalesce(given_reason, reason), args, labels, expires, caused_by, traceparent, attempts,
        losses, node, fence, created_at, @began, (SELECT evertick.now_us()), is_cancel_requested, cancel_reason,
        progress, progress_text, phases, error, dispatch
    FROM ended ON CONFLICT DO NOTHING RETURNING id),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.finished', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, g.verdict, coalesce(g.given_reason, g.reason), g.attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM ended) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)
SELECT id::text AS id, schedule_id, frees, CASE WHEN state <> 'blocked' THEN limit_key END AS limit_key,
    id IN (SELECT id FROM kept) AS is_kept
FROM ended;

-- name: run.unblock
-- A run blocked on an ended run becomes due now, or later by its own jitter. After the end, in a statement of its own,
-- so that it sees runs that were blocked on them until they were locked.
UPDATE evertick.runs SET state = 'waiting', blocked_on = NULL, due_at = greatest(due_at, (SELECT evertick.now_us()))
WHERE state = 'blocked' AND app = $1 AND schedule_id = ANY($2::bigint[]) AND blocked_on = ANY($3::uuid[]);

-- ================================================================================================= schedules

-- name: due_schedules
-- Longest due first, from a place in this order, and when the next schedule is due. Columns as arrays, because they are
-- much cheaper to read than rows.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
found AS (
    SELECT schedule_id, version, fire_at, at, fires, failures, @live AS live, d.xmin AS stamp
    FROM evertick.due d
    WHERE app = $1 AND at <= (SELECT now FROM clock) AND format <= $2 AND (at, schedule_id) > ($4, $5)
    ORDER BY at, schedule_id LIMIT $3)
SELECT (SELECT now FROM clock) AS now, (
        SELECT at FROM evertick.due
        WHERE app = $1 AND at > (SELECT now FROM clock) AND format <= $2 ORDER BY at LIMIT 1) AS next_at,
    array_agg(d.schedule_id) AS ids, array_agg(s.key) AS keys, array_agg(d.version) AS versions,
    array_agg(s.created_at) AS created_ats, array_agg(s.definition) AS definitions, array_agg(s.pause) AS pauses,
    array_agg(s.occurrences) AS occurrences, array_agg(d.fire_at) AS fire_ats, array_agg(d.at) AS ats,
    array_agg(d.fires) AS fires, array_agg(d.failures) AS failures, array_agg(d.live) AS lives,
    array_agg(d.stamp) AS stamps
FROM found d JOIN evertick.schedules s ON s.id = d.schedule_id;

-- name: stored_schedules
-- Definition and cursor, by id and by key; newer formats are left to newer nodes.
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = ANY(ARRAY[s.id])
WHERE s.app = $1 AND s.id = ANY($2::bigint[]) AND s.format <= $4
UNION ALL
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = ANY(ARRAY[s.id])
WHERE s.app = $1 AND s.key = ANY($3::text[]) AND s.id <> ALL($2::bigint[]) AND s.format <= $4;

-- name: declared_schedules
-- All schedules that are or were declared.
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = s.id
WHERE s.app = $1 AND s.declared IS NOT NULL AND s.format <= $2
ORDER BY s.key;

-- name: fingerprints
-- Once per start of a node: few values, so a scan of the narrow table is enough.
SELECT fingerprint, min(schedule_id) AS id FROM evertick.due
WHERE app = $1 AND fingerprint <> '' AND format <= $2 GROUP BY fingerprint;

-- name: computed_with
-- Schedules whose cursor was computed with one fingerprint, page by page.
SELECT @stored
FROM evertick.due d JOIN evertick.schedules s ON s.id = ANY(ARRAY[d.schedule_id])
WHERE d.app = $1 AND d.fingerprint = $2 AND d.schedule_id > $3 AND d.format <= $4
ORDER BY d.schedule_id LIMIT $5;

-- name: record_fires.advance
-- The guard: version, cursor and live runs must be those from which the plan was made. If a plan checks live runs, its
-- row was locked by an earlier statement, so this one sees every recorded run. Values that all plans share are sent
-- once. Returns the ids only if some are missing.
WITH moved AS (
    UPDATE evertick.due d
    SET version = d.version + coalesce(p.bump, 0), fire_at = p.next_fire_at, at = p.next_at,
        after_end = p.after_end, fires = d.fires + coalesce(p.fires, ($11::bigint[])[1]), failures = 0, error = NULL,
        fingerprint = coalesce(nullif(p.fingerprint, ''), d.fingerprint)
    FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::int[], $7::int[], $8::bigint[], $9::bigint[],
        $10::bigint[], $11::bigint[], $12::text[])
        AS p(schedule_id, version, fire_at, at, live, bump, next_fire_at, next_at, after_end, fires, fingerprint)
    WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]) AND d.app = $1
        AND d.version = coalesce(p.version, ($3::int[])[1])
        AND d.fire_at IS NOT DISTINCT FROM p.fire_at AND d.at IS NOT DISTINCT FROM p.at
        AND (p.live IS NULL OR p.live = @live)
    RETURNING d.schedule_id)
SELECT (SELECT evertick.now_us()) AS now, @feed_epoch IS NOT NULL AS has_feed,
    CASE WHEN count(*) < cardinality($2) THEN coalesce(array_agg(schedule_id), '{}') END AS ids
FROM moved;

-- name: record_fires.ordinary
-- Most plans: move the cursor and insert one run, without reading other runs. The guard is the stamp: recording a run
-- writes the schedule's row, so an unchanged row means that no run was added. A second session waits for the row, and
-- then finds another stamp. Writes nothing if the ledger has one of the moments: a live run violates the index of
-- moments, and a run in history gives a NULL id, which the table refuses. Returns the schedules only if some are
-- missing.
-- $1 is the app, $2 the claiming node, $4 and $5 bound the moments. The others are columns of p, made by `fires.py`:
-- one value per plan; or one value for all, read from the first element while p has NULL; or none, while p has NULL and
-- the statement has the default.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
claimant AS MATERIALIZED (
    SELECT k.id AS node, nextval('evertick.fence') AS fence FROM evertick.nodes k
    WHERE k.id = $2 AND k.died_at IS NULL),
moved AS (
    UPDATE evertick.due d
    SET fire_at = p.next_fire_at, at = CASE WHEN cardinality($15) = 0 THEN p.next_fire_at ELSE p.next_at END,
        after_end = NULL, fires = d.fires + 1, failures = 0, error = NULL,
        fingerprint = coalesce(nullif(coalesce(p.fingerprint, ($16::text[])[1]), ''), d.fingerprint)
    FROM unnest($3::xid[], $6::uuid[], $7::bigint[], $8::text[], $9::int[], $10::text[], $11::bigint[], $12::bigint[],
        $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::bigint[], $19::text[], $20::text[],
        $21::bigint[], $22::bool[], $23::bigint[], $24::bool[], $25::int[])
        AS p(stamp, id, schedule_id, schedule_key, version, task, fire_at, at, due_at, next_fire_at, next_at, fingerprint,
            queue, priority, reason, labels, expires, is_waiting, timeout, at_most_once, format)
    WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]) AND d.xmin = p.stamp AND d.app = $1
        AND d.version = coalesce(p.version, ($9::int[])[1])
        AND d.fire_at IS NOT DISTINCT FROM p.fire_at AND d.at IS NOT DISTINCT FROM coalesce(p.at, p.fire_at)
    RETURNING d.version AS read_version, p.*),
inserted AS (
    INSERT INTO evertick.runs AS r (app, id, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, state, reason, labels, expires, created_at, node, fence, started_at, deadline, at_most_once, format)
    SELECT $1, CASE WHEN NOT EXISTS (SELECT FROM evertick.history h
            WHERE h.schedule_id = m.schedule_id AND h.fire_at = m.fire_at AND h.cause IN ('fire', 'backfill')
                AND h.fire_at BETWEEN $4 AND $5 OFFSET 0) THEN m.id END,
        m.schedule_id, m.schedule_key, m.read_version, coalesce(m.task, ($10::text[])[1]), 'fire', m.fire_at,
        coalesce(m.due_at, m.fire_at), coalesce(m.queue, 'default'), coalesce(m.priority, 0),
        CASE WHEN c.fence IS NOT NULL THEN 'running' ELSE 'waiting' END, m.reason, m.labels::jsonb, m.expires, t.now,
        c.node, c.fence, CASE WHEN c.fence IS NOT NULL THEN t.now END,
        CASE WHEN c.fence IS NOT NULL THEN t.now + m.timeout END,
        c.fence IS NOT NULL AND coalesce(m.at_most_once, false), coalesce(m.format, 1)
    FROM moved m CROSS JOIN clock t LEFT JOIN claimant c ON m.is_waiting IS NOT TRUE
@new_events
SELECT (SELECT now FROM clock) AS now, max(fence) AS fence, count(*) > count(fence) AS has_waiting,
    CASE WHEN count(*) < cardinality($6) THEN (SELECT coalesce(array_agg(schedule_id), '{}') FROM moved) END AS taken
FROM inserted;

-- name: record_fires.decide
-- The overrides that are left; NULL for none.
UPDATE evertick.schedules s SET occurrences = n.occurrences
FROM unnest($1::bigint[], $2::text[]) AS n(id, occurrences) WHERE s.id = ANY(ARRAY[n.id]);

-- name: record_fires.fail
-- A failed plan only moves the time of the next one. The guard is the row itself.
UPDATE evertick.due d SET at = p.next_at, failures = d.failures + 1, error = p.error
FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
    AS p(schedule_id, version, fire_at, at, next_at, error)
WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]) AND d.app = $1 AND d.version = p.version
    AND d.fire_at IS NOT DISTINCT FROM p.fire_at AND d.at IS NOT DISTINCT FROM p.at
RETURNING d.schedule_id;

-- name: record_fires.count_back
-- Subtract fires whose run was recorded already.
UPDATE evertick.due d SET fires = d.fires - p.count
FROM unnest($1::bigint[], $2::bigint[]) AS p(schedule_id, count) WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]);

-- name: record_fires.gaps
-- Moments without a run, and their events.
WITH recorded AS (
    INSERT INTO evertick.gaps (app, schedule_id, schedule_key, first_at, last_at, count, is_exact, verdict, reason,
        recorded_at)
    SELECT $1, s.id, s.key, g.first_at, g.last_at, g.count, g.is_exact, g.verdict, g.reason, (SELECT evertick.now_us())
    FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bool[], $7::text[], $8::text[])
        AS g(schedule_id, first_at, last_at, count, is_exact, verdict, reason)
    JOIN evertick.schedules s ON s.id = ANY(ARRAY[g.schedule_id])
    RETURNING *)
INSERT INTO evertick.feed (app, epoch, at, kind, body)
SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'gap.recorded',
    json_agg(json_build_array(g.schedule_key, g.first_at, g.last_at, g.count, g.verdict, g.reason))::text
FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM recorded) g
WHERE @feed_epoch IS NOT NULL GROUP BY g.part;

-- name: record_fires.written_before
-- Runs of this batch that were written before. A trigger does not move the cursor, so a repeated one passes the guard;
-- it must not replace its own run. $2 and $3 bound the partitions that are read.
SELECT id::text AS id FROM evertick.runs WHERE id = ANY($1::uuid[])
UNION ALL SELECT id::text AS id FROM evertick.history WHERE id = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3;

-- name: record_fires.lock_early
-- Early runs that are not running and have no judged or lost attempt. Waits for a claim of one; no claim can follow.
SELECT r.id::text AS id FROM unnest($2::uuid[], $3::bigint[]) AS w(id, schedule_id)
JOIN evertick.runs r ON r.id = ANY(ARRAY[w.id]) AND r.schedule_id = w.schedule_id
WHERE r.app = $1 AND r.cause = 'fire' AND r.state IN ('waiting', 'blocked', 'parked') AND r.attempts = 0 AND r.losses = 0
ORDER BY w.id FOR UPDATE OF r;

-- name: record_fires.give_moments_back
-- Detach them from their moments.
UPDATE evertick.runs SET cause = 'trigger' WHERE id = ANY($1::uuid[]);

-- name: record_fires.give_keys_back
-- Release their key for a period, because the run of that moment has the same one. json, because jsonb refuses some
-- definitions.
DELETE FROM evertick.unique_keys u
USING unnest($2::uuid[], $3::bigint[]) AS w(run, schedule_id) JOIN evertick.schedules s ON s.id = w.schedule_id
WHERE u.app = $1 AND u.key = s.definition::json ->> 'unique' AND u.run = w.run;

-- name: record_fires.ask_to_cancel
-- Overlap "replace": the owner sees the request with its next heartbeat. A dispatched run becomes due for a check.
UPDATE evertick.runs SET is_cancel_requested = true, cancel_reason = $2,
    deadline = CASE WHEN dispatched_at IS NULL THEN deadline ELSE (SELECT evertick.now_us()) END
WHERE id = ANY($1::uuid[]) AND NOT is_cancel_requested;

-- name: change_schedules.add
-- A key that is taken is no error: the caller reads and tries again.
INSERT INTO evertick.schedules (app, key, created_at, format, definition, labels, pause_after, when_text, blackout,
    pause, declared)
SELECT $1, n.key, coalesce(n.created_at, (SELECT evertick.now_us())), n.format, n.definition, n.labels::jsonb,
    n.pause_after, n.when_text, n.blackout, n.pause, n.declared
FROM unnest($2::text[], $3::bigint[], $4::int[], $5::text[], $6::text[], $7::int[], $8::text[], $9::text[], $10::text[],
    $11::text[])
    AS n(key, created_at, format, definition, labels, pause_after, when_text, blackout, pause, declared)
ON CONFLICT DO NOTHING RETURNING id, key;

-- name: change_schedules.add_due
-- Version 1 and the first cursor.
INSERT INTO evertick.due (schedule_id, app, version, format, fire_at, at, fingerprint)
SELECT n.id, $1, 1, n.format, n.fire_at, n.at, n.fingerprint
FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::text[]) AS n(id, format, fire_at, at, fingerprint);

-- name: change_schedules.find
-- The guard has an id, the user gave a key: both must name the same schedule.
SELECT s.id, s.definition FROM unnest($2::bigint[], $3::text[]) AS w(id, key)
JOIN evertick.schedules s ON s.id = ANY(ARRAY[w.id]) AND s.key = w.key AND s.app = $1;

-- name: change_schedules.define
-- New definitions.
UPDATE evertick.schedules s
SET definition = n.definition, format = n.format, labels = n.labels::jsonb, pause_after = n.pause_after,
    when_text = n.when_text, blackout = n.blackout
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[], $5::int[], $6::text[], $7::text[])
    AS n(id, definition, format, labels, pause_after, when_text, blackout) WHERE s.id = ANY(ARRAY[n.id]);

-- name: change_schedules.define_due
-- The format, so that the tick filters by it without reading definitions. Earlier failures do not count for the new
-- one.
UPDATE evertick.due d SET format = n.format, counts_from = d.version
FROM unnest($1::bigint[], $2::int[]) AS n(id, format) WHERE d.schedule_id = ANY(ARRAY[n.id]);

-- name: change_schedules.keep_version
-- Runs refer to the definition under which they were recorded.
INSERT INTO evertick.schedule_versions (app, key, schedule_id, version, definition, args)
SELECT $1, n.key, n.id, d.version, n.definition, n.args
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) AS n(id, key, definition, args)
JOIN evertick.due d ON d.schedule_id = ANY(ARRAY[n.id]) ON CONFLICT DO NOTHING;

-- name: change_schedules.declare
-- The declaration that the schedule is written from.
UPDATE evertick.schedules s SET declared = n.declared
FROM unnest($1::bigint[], $2::text[]) AS n(id, declared) WHERE s.id = ANY(ARRAY[n.id]);

-- name: change_schedules.pause
-- NULL ends a pause.
UPDATE evertick.schedules s SET pause = n.pause
FROM unnest($1::bigint[], $2::text[]) AS n(id, pause) WHERE s.id = ANY(ARRAY[n.id]);

-- name: change_schedules.count_failures_anew
-- Failures before the end of a pause do not count for pause_after.
UPDATE evertick.due SET counts_from = version WHERE schedule_id = ANY($1::bigint[]);

-- name: change_schedules.remove
-- History and old versions stay.
WITH cursors AS (DELETE FROM evertick.due WHERE schedule_id = ANY($1::bigint[]))
DELETE FROM evertick.schedules WHERE id = ANY($1::bigint[]);

-- name: schedules
-- For display, by key; a filter that is NULL matches all.
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = s.id
WHERE s.app = $1 AND s.key > $2 AND s.format <= $3 AND ($4::text[] IS NULL OR s.key = ANY($4::text[]))
    AND ($5::bool IS NULL OR (s.pause IS NOT NULL) = $5) AND ($6::text IS NULL OR s.labels @> $6::jsonb)
ORDER BY s.key LIMIT $7;

-- name: schedules.by_due
-- The same in the order of the tick, by its index, so that only the returned rows are read.
SELECT @stored
FROM evertick.due d JOIN evertick.schedules s ON s.id = d.schedule_id
WHERE d.app = $1 AND d.at IS NOT NULL AND s.key > $2 AND s.format <= $3
    AND ($4::text[] IS NULL OR s.key = ANY($4::text[]))
    AND ($5::bool IS NULL OR (s.pause IS NOT NULL) = $5) AND ($6::text IS NULL OR s.labels @> $6::jsonb)
ORDER BY d.at LIMIT $7;

-- name: schedules.last_runs
-- The run with the newest moment of each schedule, live or done.
SELECT w.id AS schedule_id, n.* FROM unnest($1::bigint[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM (
        (SELECT r.id::text AS id, r.fire_at, r.state, NULL::text AS verdict, coalesce(r.parked_for, r.reason) AS reason
        FROM evertick.runs r WHERE r.schedule_id = w.id ORDER BY r.fire_at DESC, r.id DESC LIMIT 1)
        UNION ALL
        (SELECT h.id::text AS id, h.fire_at, 'done', h.verdict, h.reason
        FROM evertick.history h WHERE h.schedule_id = w.id ORDER BY h.fire_at DESC, h.id DESC LIMIT 1)) l
    ORDER BY l.fire_at DESC, l.id DESC LIMIT 1) n;

-- name: schedules.counts
-- Finished runs by verdict, as long as history is kept.
SELECT schedule_id, verdict, count(*) AS count FROM evertick.history
WHERE schedule_id = ANY($1::bigint[]) GROUP BY schedule_id, verdict;

-- name: failing
-- Schedules with pause_after whose newest counted fires have all failed, with the newest of them. $3: only these
-- schedules; NULL: all of the app. Other schedules cost nothing, because the index is partial.
WITH failing AS MATERIALIZED (
    SELECT s.id, s.key, d.version, d.counts_from, v.count
    FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = s.id
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, bool_or(n.verdict = 'succeeded') AS has_succeeded
        FROM (
            SELECT h.verdict FROM evertick.history h
            WHERE h.schedule_id = s.id AND h.cause = 'fire' AND h.version >= d.counts_from
                AND h.verdict IN ('succeeded', 'failed', 'lost')
            ORDER BY h.fire_at DESC LIMIT s.pause_after) n) v
    WHERE s.app = $1 AND s.format <= $2 AND s.pause IS NULL AND s.pause_after IS NOT NULL
        AND ($3::bigint[] IS NULL OR s.id = ANY($3::bigint[]))
        AND v.count >= s.pause_after AND NOT v.has_succeeded
    ORDER BY s.id LIMIT $4)
SELECT f.id, f.key, f.version, f.count, v.id::text AS run, v.verdict, v.reason, v.error
FROM failing f
CROSS JOIN LATERAL (
    SELECT h.id, h.verdict, h.reason, h.error FROM evertick.history h
    WHERE h.schedule_id = f.id AND h.cause = 'fire' AND h.version >= f.counts_from
        AND h.verdict IN ('succeeded', 'failed', 'lost')
    ORDER BY h.fire_at DESC LIMIT 1) v
ORDER BY f.id;

-- name: calendar_users
-- A scan, for operators. In the rule the name is followed by an option or by the end; a blackout is the name.
SELECT key FROM evertick.schedules
WHERE app = $1 AND (position('; calendar=' || $2 || ';' IN when_text || ';') > 0 OR blackout = $2)
ORDER BY key LIMIT $3;

-- name: remove_calendar
-- All of its versions, unless a schedule uses it.
DELETE FROM evertick.calendars WHERE app = $1 AND name = $2 AND NOT EXISTS (
    SELECT FROM evertick.schedules
    WHERE app = $1 AND (position('; calendar=' || $2 || ';' IN when_text || ';') > 0 OR blackout = $2));

-- name: calendars
-- The newest version of each name.
SELECT DISTINCT ON (name) name, content FROM evertick.calendars WHERE app = $1 ORDER BY name, id DESC;

-- name: put_calendar.lock
-- One session at a time per name: the second must see the version of the first.
SELECT pg_advisory_xact_lock(hashtextextended('evertick.calendars' || $1::text || chr(10) || $2::text, 0));

-- name: put_calendar
-- Equal content changes nothing. An earlier version becomes the newest again.
WITH newest AS (
    SELECT content FROM evertick.calendars WHERE app = $1 AND name = $2 ORDER BY id DESC LIMIT 1)
INSERT INTO evertick.calendars (app, name, version, content, put_at)
SELECT $1, $2, $3, $4, (SELECT evertick.now_us())
WHERE NOT EXISTS (SELECT FROM newest WHERE content = $4);

-- name: put_calendar.forget
-- Delete an earlier copy of this version, so that it can become the newest.
DELETE FROM evertick.calendars WHERE app = $1 AND name = $2 AND version = $3
    AND $4 IS DISTINCT FROM (SELECT content FROM evertick.calendars WHERE app = $1 AND name = $2 ORDER BY id DESC LIMIT 1);

-- ================================================================================================= runs

-- part: period_holder
-- The run that holds the key of `w` for a period, live or done, if the ledger still has it.
(SELECT u.run FROM evertick.unique_keys u
    WHERE u.app = $1 AND u.key = w.unique_key AND u.until > (SELECT evertick.now_us())
        AND (EXISTS (SELECT FROM evertick.runs r WHERE r.app = $1 AND r.id = u.run OFFSET 0)
            OR EXISTS (SELECT FROM evertick.history h
                WHERE h.id = u.run AND h.fire_at = u.fire_at AND h.app IS NOT DISTINCT FROM $1 OFFSET 0)))

-- name: unique.lock
-- Wait for a transaction that is about to take one of these keys. A few hundred locks stand for all keys, so that a
-- batch of thousands does not fill the server's lock table.
SELECT pg_advisory_xact_lock(lock) FROM (
    SELECT DISTINCT hashtextextended('evertick.unique' || $1::text, hashtext(w.key) & 255) AS lock
    FROM unnest($2::text[]) AS w(key) ORDER BY lock) l;

-- name: unique.holders
-- The keys that are taken, with their runs.
SELECT w.unique_key AS key, coalesce(
    (SELECT r.id FROM evertick.runs r WHERE r.app = $1 AND r.unique_key = w.unique_key), @period_holder)::text AS id
FROM unnest($2::text[]) AS w(unique_key);

-- name: unique.keep
-- After the insertion: hold the key for a period, by the store's time. Replaces a holder whose period is over.
INSERT INTO evertick.unique_keys (app, key, run, fire_at, until)
SELECT $1, w.key, r.id, r.fire_at, (SELECT evertick.now_us()) + w.period
FROM unnest($2::text[], $3::uuid[], $4::bigint[]) AS w(key, run, period)
JOIN evertick.runs r ON r.id = ANY(ARRAY[w.run])
ON CONFLICT (app, key) DO UPDATE SET run = excluded.run, fire_at = excluded.fire_at, until = excluded.until;

-- name: enqueue.known
-- The existing runs in place of those not inserted: the same id, or the same unique key or moment. $7 and $8 bound the
-- partitions that are read.
SELECT w.place, coalesce(
    (SELECT r.id FROM evertick.runs r WHERE r.id = w.id AND r.app = $1),
    (SELECT h.id FROM evertick.history h
        WHERE h.id = w.id AND h.fire_at BETWEEN $7 AND $8 AND h.app IS NOT DISTINCT FROM $1 LIMIT 1),
    (SELECT r.id FROM evertick.runs r WHERE r.app = $1 AND r.unique_key = w.unique_key),
    @period_holder,
    (SELECT r.id FROM evertick.runs r
        WHERE r.schedule_id = w.schedule_id AND r.fire_at = w.fire_at AND r.cause IN ('fire', 'backfill')),
    (SELECT h.id FROM evertick.history h
        WHERE h.schedule_id = w.schedule_id AND h.fire_at = w.fire_at AND h.cause IN ('fire', 'backfill')))::text AS id
FROM unnest($2::int[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[])
    AS w(place, id, unique_key, schedule_id, fire_at);

-- part: claimant
-- The claiming node, if it is alive.
claimant AS MATERIALIZED (SELECT k.id FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)

-- part: levels
-- The priorities in use in these queues, highest first, by one index search each, so that future runs of a higher
-- priority are not scanned. None if the claiming node is dead.
levels(priority) AS (
    SELECT 9223372036854775807::bigint FROM claimant
    UNION ALL
    SELECT (SELECT max(below.priority) FROM unnest($3::text[]) AS q(queue) CROSS JOIN LATERAL (
        SELECT r.priority FROM evertick.runs r
        WHERE r.state = 'waiting' AND r.app = $1 AND r.queue = q.queue AND r.priority < levels.priority
        ORDER BY r.priority DESC LIMIT 1) below)
    FROM levels WHERE levels.priority IS NOT NULL)

-- part: picked
-- Due runs of these queues and tasks, highest priority first, then longest due; locked ones are skipped.
picked AS MATERIALIZED (
    SELECT best.id, best.limit_key FROM levels CROSS JOIN LATERAL (
        SELECT lane.id, lane.limit_key FROM unnest($3::text[]) AS q(queue) CROSS JOIN LATERAL (
            SELECT r.id, r.due_at, r.limit_key FROM evertick.runs r
            WHERE r.state = 'waiting' AND r.app = $1 AND r.queue = q.queue AND r.priority = levels.priority
                AND r.due_at <= (SELECT now FROM clock) AND r.task = ANY($4::text[]) AND @readable
                AND (r.expires IS NULL OR r.due_at + r.expires >= (SELECT now FROM clock))
            ORDER BY r.due_at LIMIT $5 FOR UPDATE SKIP LOCKED) lane
        ORDER BY lane.due_at LIMIT $5) best
    LIMIT $5)

-- part: next_due
-- When the next waiting run of these queues and tasks is due, without those that are being claimed.
(SELECT min(first.due_at) FROM levels CROSS JOIN unnest($3::text[]) AS q(queue) CROSS JOIN LATERAL (
    SELECT r.due_at FROM evertick.runs r
    WHERE r.state = 'waiting' AND r.app = $1 AND r.queue = q.queue AND r.priority = levels.priority
        AND r.task = ANY($4::text[]) AND @readable AND r.id NOT IN (SELECT id FROM picked)
    ORDER BY r.due_at LIMIT 1) first)

-- part: too_old
-- Waiting runs of these queues and tasks that are too old to start.
ARRAY(
    SELECT r.id::text FROM evertick.runs r
    WHERE r.state = 'waiting' AND r.expires IS NOT NULL AND r.app = $1 AND r.due_at + r.expires < (SELECT now FROM clock)
        AND r.queue = ANY($3::text[]) AND r.task = ANY($4::text[]) AND @readable AND EXISTS (SELECT FROM levels)
    ORDER BY r.due_at + r.expires LIMIT 1000)

-- name: claim
-- One statement: the fence is drawn after the runs were locked, so a greater fence is a later claim of a run. Always
-- returns a row, with the runs as arrays, which cost a third of rows to read. If the limit was reached, the time of the
-- next run is not searched: more may be waiting. A node that must check blocked runs again gets none here and claims in
-- steps.
WITH RECURSIVE clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
claimant AS MATERIALIZED (
    SELECT k.id FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL
        AND NOT EXISTS (SELECT FROM evertick.looks l WHERE l.node = $2 OFFSET 0)),
@levels,
@picked,
drawn AS MATERIALIZED (SELECT nextval('evertick.fence') AS fence FROM (SELECT FROM picked LIMIT 1) p),
taken AS (
    UPDATE evertick.runs r
    SET state = 'running', node = $2, fence = (SELECT fence FROM drawn), started_at = (SELECT now FROM clock),
        deadline = (SELECT now FROM clock) + ($6::jsonb ->> r.task)::bigint, at_most_once = r.task = ANY($7::text[]),
        progress = NULL, progress_text = NULL, phases = NULL, task_hash = NULL, limit_key = NULL,
        unique_key = CASE r.unique_until WHEN 'start' THEN NULL ELSE r.unique_key END
    WHERE r.id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING r.id, r.task, r.args, r.fire_at, r.due_at, r.attempts, r.losses, r.schedule_id, r.schedule_key, r.version,
        r.cause, r.queue, r.priority, r.labels, r.traceparent, r.reason),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT now FROM clock), 'run.started', json_agg(json_build_array(t.id, t.schedule_key,
        t.task, t.fire_at, t.due_at, t.cause, NULL, t.reason, t.attempts, $2))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM taken) t
    WHERE @feed_epoch IS NOT NULL GROUP BY t.part)
SELECT (SELECT now FROM clock) AS now, (SELECT fence FROM drawn) AS fence,
    CASE WHEN $5 > 0 AND count(*) >= $5 THEN (SELECT now FROM clock) ELSE @next_due END AS next_due_at,
    @too_old AS too_old, ARRAY(SELECT limit_key FROM picked WHERE limit_key IS NOT NULL) AS old_limits,
    EXISTS (SELECT FROM evertick.looks l WHERE l.node = $2 OFFSET 0) AS has_to_look,
    array_agg(r.id::text) AS id, array_agg(r.task) AS task, array_agg(@args) AS args, array_agg(r.fire_at) AS fire_at,
    array_agg(r.due_at) AS due_at, array_agg(r.attempts) AS attempts, array_agg(r.losses) AS losses,
    array_agg(r.schedule_id) AS schedule_id, array_agg(r.schedule_key) AS schedule_key, array_agg(r.cause) AS cause,
    array_agg(r.queue) AS queue, array_agg(r.priority) AS priority, array_agg(r.labels::text) AS labels,
    array_agg(r.traceparent) AS traceparent
FROM taken r;

-- name: claim.pick
-- Claim in steps, for nodes that know limited tasks: choose and lock.
WITH RECURSIVE clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
@claimant,
@levels,
@picked
SELECT @claimed_run FROM evertick.runs r WHERE r.id = ANY(ARRAY(SELECT id FROM picked))
ORDER BY r.priority DESC, r.due_at;

-- name: claim.begin
-- One statement for all that a claim in steps must know first, because every session at the gate waits for each step.
-- Takes the limit keys whose time has come, and returns whether the node must check blocked runs again, and from which
-- key.
WITH RECURSIVE clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
@claimant,
@levels,
opened AS (
    DELETE FROM evertick.limits l USING (
        SELECT app, key FROM evertick.limits
        WHERE app = $1 AND free_at <= (SELECT now FROM clock) ORDER BY free_at LIMIT $5) d
    WHERE l.app = d.app AND l.key = d.key AND EXISTS (SELECT FROM claimant) RETURNING l.key)
SELECT (SELECT now FROM clock) AS now, EXISTS (SELECT FROM claimant) AS is_alive, @too_old AS too_old,
    @feed_epoch IS NOT NULL AS has_feed, ARRAY(SELECT key FROM opened) AS opened,
    ARRAY(SELECT l.id FROM evertick.looks l WHERE l.node = $2) AS looks,
    (SELECT min(l.looked_at) FROM evertick.looks l WHERE l.node = $2) AS looked_at;

-- name: claim.too_old
-- Runs that must expire before others can be chosen.
WITH RECURSIVE clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
@claimant,
@levels
SELECT @too_old AS too_old;

-- name: claim.next
-- When to claim again: the next waiting run, and the next time of a limit.
WITH RECURSIVE @claimant,
@levels,
picked AS (SELECT NULL::uuid AS id WHERE false)
SELECT @next_due AS due_at, (SELECT min(free_at) FROM evertick.limits WHERE app = $1) AS free_at;

-- name: claim.expire
-- Of the expired runs, those that are still expired after they were locked.
SELECT id::text AS id FROM evertick.runs
WHERE id = ANY($2::uuid[]) AND app = $1 AND state = 'waiting' AND due_at + expires < (SELECT evertick.now_us())
ORDER BY id FOR UPDATE;

-- name: take
-- Start an attempt for locked runs, under one fence and one time: the given ones, or new ones.
WITH clock AS MATERIALIZED (
    SELECT coalesce($7::bigint, evertick.now_us()) AS now, coalesce($6::bigint, nextval('evertick.fence')) AS fence)
UPDATE evertick.runs r
SET state = 'running', node = $1, fence = c.fence, started_at = c.now, deadline = c.now + t.timeout,
    at_most_once = t.at_most_once, progress = NULL, progress_text = NULL, phases = NULL, task_hash = NULL,
    limit_key = t.limit_key, unique_key = CASE r.unique_until WHEN 'start' THEN NULL ELSE r.unique_key END
FROM clock c, unnest($2::uuid[], $3::bigint[], $4::bool[], $5::text[]) AS t(id, timeout, at_most_once, limit_key)
WHERE r.id = ANY(ARRAY[t.id])
RETURNING c.now, @claimed_run, r.fence;

-- part: history_row
-- The columns of an ended run.
id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority, args, labels, expires,
    caused_by, traceparent, losses, node, fence, created_at, started_at, is_cancel_requested, cancel_reason, progress,
    progress_text

-- part: finished_events
-- The feed event of runs in `ended`.
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.finished', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, g.verdict, g.shown_reason, g.given_attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM ended) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)

-- name: finish.alike
-- Most ends: runs of one claim with equal outcomes that affect no other run. Guarded by the claim; moved to history in
-- the same statement. Without a reason in the outcome the recorded one (late) stays. Fails if history has one of the
-- moments, which is cheaper than a check of each; `finish.done` then leaves that one out. Returns the ids only if some
-- are missing.
WITH ended AS (
    DELETE FROM evertick.runs r
    WHERE r.id = ANY($3::uuid[]) AND r.fence = $4 AND r.node = $2 AND r.app = $1 AND r.started_at IS NOT NULL
        AND NOT r.frees AND r.limit_key IS NULL
    RETURNING @history_row, $5::text AS verdict, $6::int AS given_attempts,
        coalesce($7::text, CASE WHEN $5 = 'cancelled' THEN cancel_reason END, reason) AS shown_reason,
        coalesce($10::text, phases) AS shown_phases),
kept AS (
    INSERT INTO evertick.history (@history_row, verdict, attempts, reason, phases, error, result, finished_at)
    SELECT *, $8::text, $9::text, (SELECT evertick.now_us()) FROM ended),
@finished_events
SELECT count(*) AS count, CASE WHEN count(*) < cardinality($3) THEN array_agg(id::text) END AS ids FROM ended;

-- name: finish.done
-- The same for runs with different outcomes. With $3 false it ignores runs whose end affects others. Second line of
-- defence: a moment that history has already is not written twice.
WITH ended AS (
    DELETE FROM evertick.runs r
    USING unnest($4::uuid[], $5::bigint[], $6::text[], $7::int[], $8::text[], $9::text[], $10::text[], $11::text[])
        AS t(given_id, given_fence, verdict, given_attempts, given_reason, given_error, result, given_phases)
    WHERE r.id = ANY(ARRAY[t.given_id]) AND r.fence = t.given_fence AND r.node = $2 AND r.app = $1
        AND r.started_at IS NOT NULL AND ($3 OR (NOT r.frees AND r.limit_key IS NULL))
    RETURNING @history_row, t.verdict, t.given_attempts,
        coalesce(t.given_reason, CASE WHEN t.verdict = 'cancelled' THEN cancel_reason END, reason) AS shown_reason,
        t.given_error, t.result, coalesce(t.given_phases, phases)),
kept AS (
    INSERT INTO evertick.history (@history_row, verdict, attempts, reason, error, result, phases, finished_at)
    SELECT *, (SELECT evertick.now_us()) FROM ended ON CONFLICT DO NOTHING RETURNING id),
@finished_events
SELECT array_agg(id::text) AS ids, (SELECT count(*) FROM kept) AS kept FROM ended;

-- name: finish.keep_attempts
-- Earlier attempts, for display. They also identify a repeated outcome after the next claim.
INSERT INTO evertick.attempts (app, run, fire_at, number, fence, node, started_at, finished_at, error, reason,
    phases)
SELECT r.app, r.id, r.fire_at, t.number, r.fence, r.node, @began, (SELECT evertick.now_us()), t.error, t.reason,
    coalesce(t.phases, r.phases)
FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[]) AS t(id, number, error, reason, phases)
JOIN evertick.runs r ON r.id = ANY(ARRAY[t.id]) ON CONFLICT DO NOTHING;

-- name: keep_cut_off
-- Attempts that were released or lost, if they had phases: those of the outcome, or those of their notes.
INSERT INTO evertick.attempts (app, run, fire_at, number, fence, node, started_at, finished_at, reason, phases, is_lost)
SELECT r.app, r.id, r.fire_at, r.attempts + 1, r.fence, r.node, r.started_at, (SELECT evertick.now_us()), t.reason,
    coalesce(t.phases, r.phases), $4
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS t(id, reason, phases)
JOIN evertick.runs r ON r.id = ANY(ARRAY[t.id])
WHERE r.fence IS NOT NULL AND coalesce(t.phases, r.phases) IS NOT NULL ON CONFLICT DO NOTHING;

-- name: finish.retry
-- The same row, due later. (node, fence) stay until the next claim, which must pass a limit again.
UPDATE evertick.runs r
SET state = 'waiting', due_at = (SELECT evertick.now_us()) + t.delay, attempts = t.attempts, error = t.error,
    phases = coalesce(t.phases, r.phases), started_at = NULL, deadline = NULL, limit_key = NULL, @not_dispatched
FROM unnest($1::uuid[], $2::bigint[], $3::int[], $4::text[], $5::text[]) AS t(id, delay, attempts, error, phases)
WHERE r.id = ANY(ARRAY[t.id]);

-- name: finish.release
-- No attempt is spent. `expires` counts from now, because the run had started in time.
UPDATE evertick.runs r
SET state = 'waiting', due_at = (SELECT evertick.now_us()) + t.delay, phases = coalesce(t.phases, r.phases),
    started_at = NULL, deadline = NULL, limit_key = NULL, @not_dispatched
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS t(id, delay, phases) WHERE r.id = ANY(ARRAY[t.id]);

-- part: dispatched
-- A run that is dispatched. It has no node; (node, fence) stay for a repeated answer and for reports. It still counts
-- for its limit. It has no deadline until its message is delivered.
state = 'dispatched', dispatch = t.dispatch, dispatched_at = (SELECT evertick.now_us()), pushed_at = NULL, taken_at = NULL,
    killed_at = NULL, started_at = NULL, deadline = NULL

-- name: finish.dispatch_with_messages
-- Most dispatches: runs of one node without a cancel request, each with its message. Guarded by the claim; written to
-- the outbox in the same statement. Returns their ids.
WITH dispatched AS (
    UPDATE evertick.runs r SET @dispatched
    FROM unnest($3::uuid[], $4::bigint[], $5::text[], $6::uuid[], $7::text[], $8::text[], $9::text[], $10::text[])
        AS t(given_id, given_fence, dispatch, message, channel, key, body, headers)
    WHERE r.id = ANY(ARRAY[t.given_id]) AND r.fence = coalesce(t.given_fence, ($4::bigint[])[1]) AND r.node = $2
        AND r.app = $1 AND r.started_at IS NOT NULL AND NOT r.is_cancel_requested
    RETURNING r.id, r.schedule_key, r.task, r.fire_at, r.due_at, r.cause, coalesce(r.parked_for, r.reason) AS shown_reason,
        r.attempts, r.node, r.fence, t.message, coalesce(t.channel, ($7::text[])[1]) AS channel, t.key, t.body, t.headers),
sent AS (
    INSERT INTO evertick.outbox (app, id, channel, key, body, headers, state, due_at, created_at, caused_by, dispatches)
    SELECT $1, h.message, h.channel, h.key, h.body, h.headers, 'waiting', c.now, c.now, h.id::text, h.fence
    FROM (SELECT evertick.now_us() AS now) c, dispatched h ORDER BY h.channel, h.key
    ON CONFLICT DO NOTHING),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.dispatched', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, NULL, g.shown_reason, g.attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM dispatched) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)
SELECT coalesce(array_agg(id::text), '{}') AS ids FROM dispatched;

-- name: finish.dispatch
-- Dispatch locked runs; their messages follow.
UPDATE evertick.runs r SET @dispatched
FROM unnest($1::uuid[], $2::text[]) AS t(id, dispatch) WHERE r.id = ANY(ARRAY[t.id]);

-- name: finish.park
-- Leave the claim index until a node joins that can run them. The recorded reason stays.
UPDATE evertick.runs r
SET state = 'parked', parked_for = t.reason, error = coalesce(t.error, r.error), task_hash = t.task_hash,
    started_at = NULL, deadline = NULL, limit_key = NULL
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS t(id, reason, error, task_hash)
WHERE r.id = ANY(ARRAY[t.id]);

-- name: finish.answered_before
-- Whether this claim has ended the run, returned it, or spent an attempt on it. First read in the partitions around its
-- creation ($5 to $6).
SELECT t.id::text AS id, t.fence FROM unnest($3::uuid[], $4::bigint[]) AS t(id, fence)
WHERE EXISTS (SELECT FROM evertick.runs r
        WHERE r.id = t.id AND r.app = $1 AND r.node = $2 AND r.fence = t.fence AND r.started_at IS NULL
        OFFSET 0)
    OR EXISTS (SELECT FROM evertick.attempts a
        WHERE a.run = t.id AND a.fence = t.fence AND a.app = $1 AND a.node = $2 AND NOT a.is_lost
            AND a.fire_at BETWEEN $5 AND $6 OFFSET 0)
    OR EXISTS (SELECT FROM evertick.history h
        WHERE h.id = t.id AND h.fence = t.fence AND h.node = $2 AND h.fire_at BETWEEN $5 AND $6
            AND h.app IS NOT DISTINCT FROM $1 OFFSET 0);

-- name: owned
-- Runs that a node holds.
SELECT id::text AS id, fence FROM evertick.runs WHERE state = 'running' AND app = $1 AND node = $2 ORDER BY id;

-- name: cancel.done
-- Of runs that are not live, those in history. First read in the partitions around their creation ($3 to $4).
SELECT id::text AS id FROM evertick.history
WHERE id = ANY($2::uuid[]) AND fire_at BETWEEN $3 AND $4 AND app IS NOT DISTINCT FROM $1;

-- name: cancel.ask
-- The first reason stays. A dispatched run becomes due for a check.
UPDATE evertick.runs
SET cancel_reason = CASE WHEN is_cancel_requested THEN cancel_reason ELSE $2 END, is_cancel_requested = true,
    deadline = CASE WHEN dispatched_at IS NULL OR is_cancel_requested THEN deadline ELSE (SELECT evertick.now_us()) END
WHERE id = ANY($1::uuid[]);

-- name: note.hold
-- Lock the runs that the node still holds.
SELECT r.id::text AS id, r.fire_at FROM unnest($3::uuid[], $4::bigint[]) AS t(id, fence)
JOIN evertick.runs r ON r.id = ANY(ARRAY[t.id]) AND r.fence = t.fence
WHERE r.app = $1 AND r.node = $2 AND r.started_at IS NOT NULL ORDER BY t.id FOR SHARE OF r;

-- name: note.own_ends
-- Runs that this claim has ended as succeeded: a job that ended its own run may have log lines left. First read in the
-- partitions around their creation ($5 to $6).
SELECT h.id::text AS id, h.fire_at FROM unnest($3::uuid[], $4::bigint[]) AS t(id, fence)
JOIN evertick.history h ON h.id = ANY(ARRAY[t.id]) AND h.fence = t.fence
WHERE h.node = $2 AND h.verdict = 'succeeded' AND h.fire_at BETWEEN $5 AND $6 AND h.app IS NOT DISTINCT FROM $1;

-- name: note.progress
-- The latest values win.
UPDATE evertick.runs r
SET progress = coalesce(t.progress, r.progress), progress_text = coalesce(t.progress_text, r.progress_text),
    phases = coalesce(t.phases, r.phases)
FROM unnest($1::uuid[], $2::float8[], $3::text[], $4::text[]) AS t(id, progress, progress_text, phases) WHERE r.id = ANY(ARRAY[t.id]);

-- name: note.lines
-- A repeated note replaces itself; the longer one has all lines of the shorter one.
INSERT INTO evertick.log_chunks AS l (app, run, fence, seq, fire_at, count, lines)
SELECT $1, t.* FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::text[])
    AS t(run, fence, seq, fire_at, count, lines)
ON CONFLICT (run, fence, seq, fire_at) DO UPDATE SET count = excluded.count, lines = excluded.lines
WHERE excluded.count > l.count;

-- name: runs.live
-- For display; `runs.py` adds the filters.
SELECT @live_run FROM evertick.runs r WHERE r.app = $1

-- name: runs.done
-- The same for history.
SELECT @done_run FROM evertick.history r WHERE r.app = $1

-- name: runs.reruns
-- All reruns, read once per query: a filter of `runs.py`.
SELECT l.caused_by FROM evertick.runs l WHERE l.app = $1 AND l.cause = 'rerun' AND l.caused_by IS NOT NULL
UNION ALL
SELECT h.caused_by FROM evertick.history h WHERE h.app = $1 AND h.cause = 'rerun' AND h.caused_by IS NOT NULL

-- name: runs.schedules_of_key
-- A key that was removed and added again names several schedules.
SELECT DISTINCT schedule_id FROM evertick.schedule_versions WHERE app = $1 AND key = $2;

-- name: recorded_moments
-- By the index that prevents a moment from being recorded twice.
SELECT fire_at FROM evertick.runs
WHERE schedule_id = $1 AND fire_at BETWEEN $2 AND $3 AND cause IN ('fire', 'backfill', 'every-node') AND app = $5
UNION
SELECT fire_at FROM evertick.history
WHERE schedule_id = $1 AND fire_at BETWEEN $2 AND $3 AND cause IN ('fire', 'backfill', 'every-node') AND app = $5
ORDER BY fire_at LIMIT $4;

-- name: gaps
-- Gaps that overlap a period, newest first.
SELECT * FROM evertick.gaps
WHERE app = $1 AND last_at >= $2 AND first_at <= $3 AND ($4::text[] IS NULL OR verdict = ANY($4::text[]))
ORDER BY last_at DESC, id DESC LIMIT $5;

-- name: gaps.of_key
-- The same for one schedule.
SELECT * FROM evertick.gaps
WHERE app = $1 AND last_at >= $2 AND first_at <= $3 AND ($4::text[] IS NULL OR verdict = ANY($4::text[]))
    AND schedule_key = $6
ORDER BY last_at DESC, id DESC LIMIT $5;

-- name: attempts
-- Earlier attempts in order.
SELECT number, fence, node, started_at, finished_at, error, reason, phases FROM evertick.attempts
WHERE app = $1 AND run = $2 ORDER BY fence;

-- name: log
-- Log chunks in the order of the attempts.
SELECT fence, seq, count, lines FROM evertick.log_chunks WHERE app = $1 AND run = $2 ORDER BY fence, seq;

-- ================================================================================================= within

-- name: within.store
-- The store of a connection: a copied store is in another database. And the isolation level of the transaction.
SELECT store_id, (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()) AS database,
    current_setting('transaction_isolation') AS isolation
FROM evertick.meta;

-- name: within.begin
-- Assigns a transaction id to a job's transaction, and returns it with the backend's pid, which a pooler would hide.
-- The server's timeouts ($1, in milliseconds) apply to this transaction only.
SELECT pg_current_xact_id()::text AS name, pg_backend_pid() AS backend,
    set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true);

-- name: within.transaction
-- The id of the open transaction.
SELECT pg_current_xact_id()::text AS name;

-- name: within.terminate
-- End the session of a transaction that took too long, unless the session has another transaction by now.
SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_xid = $2::text::xid8::xid;

-- name: within.held
-- Whether the claim holds its run. Without a lock, so that no session waits for a job.
SELECT FROM evertick.runs WHERE app = $1 AND node = $2 AND id = $3 AND fence = $4 AND started_at IS NOT NULL;

-- ================================================================================================= limits

-- name: limits.gate
-- One session per app at a time claims under a limit or releases limits; see limits.py.
SELECT pg_advisory_xact_lock(hashtextextended('evertick.limits' || $1::text, 0));

-- name: limits.gate_of_ours
-- The same in a transaction of the store, which the server ends if its node falls silent, because all others wait for
-- it.
SELECT pg_advisory_xact_lock(hashtextextended('evertick.limits' || $1::text, 0)),
    set_config('idle_in_transaction_session_timeout', $2, true);

-- name: limits.running
-- The count against a concurrency limit: a few entries of a partial index per key.
SELECT w.key, (SELECT count(*) FROM evertick.runs r
    WHERE r.state IN ('running', 'dispatched') AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key) AS count
FROM unnest($2::text[]) AS w(key);

-- name: limits.hold_back
-- Out of the claim index until the key is free.
UPDATE evertick.runs r SET state = 'blocked', limit_key = w.key
FROM unnest($1::uuid[], $2::text[]) AS w(id, key) WHERE r.id = ANY(ARRAY[w.id]);

-- name: limits.let_through
-- Release the best runs of each lane (task and queue) of the keys; their key stays as a mark. One index search per
-- lane.
WITH RECURSIVE lanes(key, most, task, queue) AS (
    SELECT w.key, w.most, f.task, f.queue FROM unnest($2::text[], $3::bigint[]) AS w(key, most) CROSS JOIN LATERAL (
        SELECT r.task, r.queue FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key
        ORDER BY r.task, r.queue LIMIT 1) f
    UNION ALL
    SELECT l.key, l.most, f.task, f.queue FROM lanes l CROSS JOIN LATERAL (
        SELECT n.task, n.queue FROM (
            (SELECT r.task, r.queue FROM evertick.runs r
            WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = l.key
                AND r.task = l.task AND r.queue > l.queue ORDER BY r.queue LIMIT 1)
            UNION ALL
            (SELECT r.task, r.queue FROM evertick.runs r
            WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = l.key
                AND r.task > l.task ORDER BY r.task, r.queue LIMIT 1)) n
        ORDER BY n.task, n.queue LIMIT 1) f),
best AS MATERIALIZED (
    SELECT b.id FROM lanes l CROSS JOIN LATERAL (
        SELECT r.id FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = l.key
            AND r.task = l.task AND r.queue = l.queue
        ORDER BY r.priority DESC, r.due_at LIMIT l.most FOR UPDATE) b
    WHERE NOT ($4 AND EXISTS (
        SELECT FROM evertick.runs r
        WHERE r.state = 'waiting' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = l.key
            AND r.task = l.task AND r.queue = l.queue OFFSET 0)))
UPDATE evertick.runs SET state = 'waiting' WHERE id = ANY(ARRAY(SELECT id FROM best));

-- name: limits.next_keys
-- The next keys that have blocked runs, by one index search each.
WITH RECURSIVE keys(key) AS (
    SELECT (SELECT min(r.limit_key) FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key > $2)
    UNION ALL
    SELECT (SELECT min(r.limit_key) FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key > k.key)
    FROM keys k WHERE k.key IS NOT NULL)
SELECT key FROM keys WHERE key IS NOT NULL LIMIT $3;

-- name: limits.stuck
-- Of these keys, those with no running run and no time to wait for. A time that was set in the future does not count:
-- the clock was put back.
SELECT w.key FROM unnest($2::text[]) AS w(key)
WHERE NOT EXISTS (SELECT FROM evertick.runs r
        WHERE r.state IN ('running', 'dispatched') AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key
        OFFSET 0)
    AND NOT EXISTS (SELECT FROM evertick.limits l
        WHERE l.app = $1 AND l.key = w.key AND l.free_at > (SELECT evertick.now_us())
            AND l.set_at <= (SELECT evertick.now_us()) OFFSET 0);

-- name: limits.holding
-- Of these keys, those that have blocked runs.
SELECT w.key FROM unnest($2::text[]) AS w(key) WHERE EXISTS (
    SELECT FROM evertick.runs r
    WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key OFFSET 0);

-- name: limits.starts
-- Stored starts of rates.
SELECT key, at, count, until FROM evertick.grants WHERE app = $1 AND key = ANY($2::text[]) ORDER BY key, at;

-- name: limits.forget_starts
-- Before they are written again.
DELETE FROM evertick.grants WHERE app = $1 AND key = ANY($2::text[]);

-- name: limits.put_starts
-- Starts at one moment each, needed until the period is over.
INSERT INTO evertick.grants (app, key, at, count, until)
SELECT $1, w.* FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w(key, at, count, until);

-- name: limits.set_times
-- When to check keys again. The earliest time wins, because a check that is too early only costs a search.
INSERT INTO evertick.limits AS l (app, key, free_at, set_at)
SELECT $1, w.key, w.free_at, $4 FROM unnest($2::text[], $3::bigint[]) AS w(key, free_at)
ON CONFLICT (app, key) DO UPDATE SET free_at = least(l.free_at, excluded.free_at), set_at = excluded.set_at;

-- name: limits.forget_times
-- Times that no longer apply.
DELETE FROM evertick.limits WHERE app = $1 AND key = ANY($2::text[]);

-- name: limits.looked_up_to
-- From which key the next claim of the node continues; NULL: it has checked all. Requests that came meanwhile stay.
WITH over AS (DELETE FROM evertick.looks WHERE id = ANY($2::bigint[]))
INSERT INTO evertick.looks (node, looked_at) SELECT $1, $3 WHERE $3::text IS NOT NULL;

-- name: limits.forget_terms
-- After a node has checked all blocked runs of its tasks: forget limits that only dead nodes had. Not if it was asked
-- to check again meanwhile: a node may have died whose keys it has passed.
DELETE FROM evertick.held_under h
WHERE h.app = $1 AND h.task IN (SELECT t.name FROM evertick.tasks t WHERE t.app = $1 AND t.node = $2)
    AND NOT EXISTS (SELECT FROM evertick.looks l WHERE l.node = $2 OFFSET 0)
    AND NOT EXISTS (SELECT FROM evertick.tasks t
        WHERE t.app = $1 AND t.name = h.task AND t.limits = h.limits OFFSET 0);

-- ================================================================================================= nodes

-- name: join
-- A repeated join is a heartbeat that replaces what the node declares. A dead incarnation never returns, and gets no
-- row.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
joined AS (
    INSERT INTO evertick.nodes AS n (id, name, app, version, started_at, beat_at, lease, lease_until, queues, declares)
    SELECT $1, $2, $3, $4, c.now, c.now, $5, c.now + $5, $6, $7 FROM clock c
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, lease_until = excluded.lease_until,
        queues = excluded.queues, declares = excluded.declares
    WHERE n.died_at IS NULL RETURNING n.id, n.app, n.name, n.xmax = 0 AS is_new),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT j.app, f.epoch, c.now, 'node.joined', json_build_array(json_build_array(j.id, j.name))::text
    FROM joined j JOIN evertick.feeds f ON f.app = j.app CROSS JOIN clock c WHERE j.is_new)
SELECT (SELECT now FROM clock) AS now, EXISTS (SELECT FROM joined) AS is_alive,
    EXISTS (SELECT FROM joined WHERE is_new) AS is_new;

-- name: join.forget
-- Repeated join: tasks that it no longer names are deleted. Runs that it blocked under limits that it no longer has may
-- be released by other nodes, as after a death.
WITH new_tasks AS (SELECT * FROM unnest($2::text[], $3::text[]) AS t(name, limits)),
forgotten AS (DELETE FROM evertick.tasks t WHERE t.node = $1 AND NOT EXISTS (SELECT FROM new_tasks WHERE new_tasks.name = t.name)),
looks AS (
    INSERT INTO evertick.looks (node, looked_at)
    SELECT DISTINCT k.id, '' FROM evertick.tasks mine
    JOIN evertick.tasks l ON l.app = mine.app AND l.name = mine.name AND l.limits <> mine.limits
    JOIN evertick.nodes k ON k.id = l.node AND k.died_at IS NULL
    WHERE mine.node = $1 AND mine.limits <> '' AND k.id <> $1
        AND NOT EXISTS (SELECT FROM new_tasks WHERE new_tasks.name = mine.name AND new_tasks.limits = mine.limits)
    RETURNING node)
SELECT EXISTS (SELECT FROM looks) AS has_news;

-- name: join.tasks
-- The tasks that it knows, and their limits, which are remembered after its death.
WITH may_hold_back AS (
    INSERT INTO evertick.held_under (app, task, limits)
    SELECT $1, t.name, t.limits FROM unnest($3::text[], $5::text[]) AS t(name, limits) WHERE t.limits <> ''
    ON CONFLICT DO NOTHING)
INSERT INTO evertick.tasks (app, name, node, hash, limits)
SELECT $1, t.name, $2, t.hash, t.limits FROM unnest($3::text[], $4::text[], $5::text[]) AS t(name, hash, limits)
ON CONFLICT (app, name, node) DO UPDATE SET hash = excluded.hash, limits = excluded.limits;

-- name: join.look
-- The node must check runs of its tasks that may be blocked under limits that it does not have.
INSERT INTO evertick.looks (node, looked_at)
SELECT $2, '' WHERE EXISTS (
    SELECT FROM unnest($3::text[], $4::text[]) AS t(name, limits)
    JOIN evertick.held_under h ON h.app = $1 AND h.task = t.name AND h.limits <> t.limits);

-- name: join.unpark
-- Unpark runs that this node can run: it knows the task, or has another signature than the one that did not fit. A run
-- that is being parked by a node that does not see this one yet is unparked by the next upkeep.
UPDATE evertick.runs SET state = 'waiting', parked_for = NULL, task_hash = NULL WHERE id = ANY(ARRAY(
    SELECT r.id FROM unnest($2::text[], $3::text[]) AS t(name, hash)
    JOIN evertick.runs r ON r.state = 'parked' AND r.app = $1 AND r.task = t.name
        AND (r.parked_for = 'unknown_task' OR (r.parked_for = 'bad_arguments' AND r.task_hash IS DISTINCT FROM t.hash))
    ORDER BY r.id FOR UPDATE OF r));

-- name: beat
-- Extend the lease from the store's now, unless the node is dead. Returns its cancel requests, and whether recovery,
-- the check of dispatched runs and the duties have work. The guard is the row itself: a declared death has written it.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
me AS (
    UPDATE evertick.nodes SET beat_at = c.now, lease = $2, lease_until = c.now + $2, ticks = $3 FROM clock c
    WHERE id = $1 AND died_at IS NULL RETURNING app)
SELECT (SELECT now FROM clock) AS now, EXISTS (SELECT FROM me) AS is_alive, ARRAY(
    SELECT r.id::text FROM me JOIN evertick.runs r ON r.state = 'running' AND r.app = me.app AND r.node = $1
    WHERE r.is_cancel_requested ORDER BY r.id) AS cancels,
    EXISTS (SELECT FROM evertick.nodes WHERE died_at IS NULL
        AND (lease_until < (SELECT now FROM clock) OR beat_at > (SELECT now FROM clock) + lease))
    OR EXISTS (SELECT FROM me JOIN evertick.runs r ON r.state = 'running' AND r.app = me.app OFFSET 0)
    OR EXISTS (SELECT FROM me JOIN evertick.runs r ON r.queue >= '@' AND r.queue < 'A' AND r.app = me.app OFFSET 0)
        AS has_charges,
    EXISTS (SELECT FROM me JOIN evertick.runs r ON r.state = 'dispatched' AND r.app = me.app
        AND r.deadline <= (SELECT now FROM clock) OFFSET 0) AS has_dispatched,
    EXISTS (SELECT FROM me JOIN evertick.runs r ON r.state = 'dispatched' AND r.is_cancel_requested AND r.app = me.app
        AND r.deadline <= (SELECT now FROM clock) OFFSET 0) AS has_dispatched_cancels,
    EXISTS (SELECT FROM me JOIN evertick.duties d ON d.app = me.app AND d.name <> ''
        WHERE NOT EXISTS (SELECT FROM evertick.nodes k WHERE k.id = d.node AND k.died_at IS NULL)) AS has_free_duties;

-- part: forget_dead
-- Delete the tasks of dead nodes. Living nodes that know one of their limited tasks under other limits must check
-- blocked runs again. Always a new row, so that none waits for a claim.
forgotten AS (DELETE FROM evertick.tasks WHERE node IN (SELECT id FROM dead)),
looks AS (
    INSERT INTO evertick.looks (node, looked_at)
    SELECT DISTINCT k.id, '' FROM dead
    JOIN evertick.tasks d ON d.node = dead.id AND d.limits <> ''
    JOIN evertick.tasks l ON l.app = d.app AND l.name = d.name AND l.limits <> d.limits
    JOIN evertick.nodes k ON k.id = l.node AND k.died_at IS NULL
    WHERE k.id NOT IN (SELECT id FROM dead) RETURNING node)

-- name: die
-- Written once. $2 is the kind of the feed event.
WITH dead AS (
    UPDATE evertick.nodes SET died_at = (SELECT evertick.now_us()) WHERE id = $1 AND died_at IS NULL
    RETURNING id, app, name, died_at),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT d.app, f.epoch, d.died_at, $2::text, json_build_array(json_build_array(d.id, d.name))::text
    FROM dead d JOIN evertick.feeds f ON f.app = d.app),
@forget_dead
SELECT EXISTS (SELECT FROM looks) AS has_news;

-- name: judge
-- Declare deaths. Written once: a second session waits for the row, and finds the death. Nothing after $1.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
dead AS (
    UPDATE evertick.nodes SET died_at = (SELECT now FROM clock)
    WHERE died_at IS NULL AND (SELECT now FROM clock) <= $1::bigint
        AND (lease_until < (SELECT now FROM clock) OR beat_at > (SELECT now FROM clock) + lease)
    RETURNING id, app, name, died_at),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT d.app, f.epoch, d.died_at, 'node.died', json_agg(json_build_array(d.id, d.name))::text
    FROM dead d JOIN evertick.feeds f ON f.app = d.app GROUP BY d.app, f.epoch, d.died_at),
@forget_dead
SELECT id, EXISTS (SELECT FROM looks) AS has_news FROM dead;

-- name: rehome.find
-- Running rows of dead or missing nodes and, until $5, rows of other nodes than the calling one ($2) that are long past
-- their deadline; not locked yet. One index search per node, so that runs of living nodes are not scanned. Also,
-- without a fence, runs in the own queue of such a node, which no other node may get. Its dispatched runs continue.
WITH RECURSIVE holders(node) AS (
    SELECT min(r.node) FROM evertick.runs r WHERE r.state = 'running' AND r.app = $1
        AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)
    UNION ALL
    SELECT (SELECT min(r.node) FROM evertick.runs r WHERE r.state = 'running' AND r.app = $1 AND r.node > h.node)
    FROM holders h WHERE h.node IS NOT NULL),
lost AS MATERIALIZED (
    SELECT l.* FROM holders h CROSS JOIN LATERAL (
        SELECT r.id, r.fence, r.priority, r.due_at FROM evertick.runs r
        WHERE r.state = 'running' AND r.app = $1 AND r.node = h.node
        ORDER BY r.priority DESC, r.due_at, r.id LIMIT $4) l
    WHERE h.node IS NOT NULL
        AND NOT EXISTS (SELECT FROM evertick.nodes n WHERE n.id = h.node AND n.died_at IS NULL OFFSET 0)),
late AS MATERIALIZED (
    SELECT r.id, r.fence, r.priority, r.due_at FROM evertick.runs r
    WHERE r.state = 'running' AND r.app = $1 AND r.deadline < (SELECT evertick.now_us()) - $3::bigint
        AND r.node <> $2 AND (SELECT evertick.now_us()) <= $5::bigint
        AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)
    ORDER BY r.deadline LIMIT $4)
(SELECT r.id::text AS id, r.fence FROM (SELECT * FROM lost UNION SELECT * FROM late) r
ORDER BY r.priority DESC, r.due_at, r.id LIMIT $4)
UNION ALL
(SELECT r.id::text, NULL FROM evertick.runs r
WHERE r.queue >= '@' AND r.queue < 'A' AND r.app = $1 AND r.state NOT IN ('running', 'dispatched')
    AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)
    AND NOT EXISTS (SELECT FROM evertick.nodes n WHERE n.id = substr(r.queue, 2) AND n.died_at IS NULL)
LIMIT $4);

-- name: rehome.lock
-- Those that are still held by the claims that were found: a later claim has another fence. Locked rows are left to the
-- session that has them.
SELECT r.id::text AS id, r.task, r.queue, r.losses + 1 AS losses, r.at_most_once, r.is_cancel_requested, r.cancel_reason,
    r.limit_key, r.frees, r.schedule_id, @readable AS is_readable, r.queue >= '@' AND r.queue < 'A' AND NOT EXISTS (
        SELECT FROM evertick.nodes n WHERE n.id = substr(r.queue, 2) AND n.died_at IS NULL OFFSET 0) AS is_left_alone
FROM evertick.runs r
WHERE r.id = ANY($2::uuid[]) AND r.app = $1 AND r.started_at IS NOT NULL AND r.fence = ANY($3::bigint[])
ORDER BY r.priority DESC, r.due_at, r.id FOR UPDATE SKIP LOCKED;

-- name: rehome.lock_bound
-- Waiting runs of a node that is gone. None can have started since, because a dead node claims nothing.
SELECT r.id::text AS id FROM evertick.runs r
WHERE r.id = ANY($2::uuid[]) AND r.app = $1 AND r.started_at IS NULL ORDER BY r.id FOR UPDATE SKIP LOCKED;

-- name: rehome.lose
-- Lost claims: their owners can write nothing any more, and do not get the answer "already".
UPDATE evertick.runs SET losses = losses + 1, fence = NULL WHERE id = ANY($1::uuid[]);

-- name: rehome.release
-- Back to waiting, due now, like released runs.
UPDATE evertick.runs
SET state = 'waiting', node = NULL, due_at = (SELECT evertick.now_us()), started_at = NULL, deadline = NULL,
    limit_key = NULL, @not_dispatched
WHERE id = ANY($1::uuid[]);

-- ================================================================================================= dispatched

-- name: apply_reports.lock
-- The guard of every report: lock those of these runs that are dispatched. Claimed runs have no `dispatched_at`.
SELECT id::text AS id, fence, attempts, at_most_once, is_cancel_requested, cancel_reason, dispatch, dispatched_at, pushed_at,
    taken_at, killed_at, deadline, fire_at, schedule_id, frees, limit_key, @feed_epoch IS NOT NULL AS has_feed,
    evertick.now_us() AS now
FROM evertick.runs WHERE app = $1 AND id = ANY($2::uuid[]) AND dispatched_at IS NOT NULL ORDER BY id FOR UPDATE;

-- name: apply_reports.progress
-- New times and progress.
UPDATE evertick.runs r
SET pushed_at = m.pushed_at, taken_at = m.taken_at, deadline = m.deadline, progress = coalesce(m.progress, r.progress),
    progress_text = coalesce(m.progress_text, r.progress_text),
    dispatch = CASE WHEN m.worker IS NULL THEN r.dispatch
        ELSE (r.dispatch::jsonb || jsonb_build_object('worker', m.worker))::text END
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::float8[], $6::text[], $7::text[])
    AS m(id, pushed_at, taken_at, deadline, progress, progress_text, worker)
WHERE r.id = ANY(ARRAY[m.id]);

-- name: apply_reports.last_lines
-- The number of the last log line of each dispatch, and the size of its log, without reading a line.
SELECT w.id::text AS id, w.fence, coalesce(max(l.seq + l.count), 0) AS last, coalesce(sum(l.count), 0)::bigint AS count,
    coalesce(sum(octet_length(l.lines)), 0)::bigint AS size
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS w(id, fence, fire_at)
LEFT JOIN evertick.log_chunks l ON l.run = w.id AND l.fence = w.fence AND l.fire_at = w.fire_at
GROUP BY w.id, w.fence;

-- name: apply_reports.done
-- End locked runs by their reports, into history in the same statement. Values that all share are sent once. Second
-- line of defence: a moment that history has already is not written twice.
WITH ended AS (
    DELETE FROM evertick.runs r
    USING (SELECT given_id, coalesce(given_fence, ($3::bigint[])[1]) AS given_fence,
            coalesce(verdict, ($4::text[])[1]) AS verdict, coalesce(given_attempts, ($5::int[])[1]) AS given_attempts,
            given_reason, given_error, result, coalesce(began, ($9::bigint[])[1]) AS began, worker
        FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[], $9::bigint[],
                $10::text[])
            AS u(given_id, given_fence, verdict, given_attempts, given_reason, given_error, result, began, worker)) t
    WHERE r.id = ANY(ARRAY[t.given_id]) AND r.fence = t.given_fence AND r.app = $1 AND r.dispatched_at IS NOT NULL
    RETURNING r.*, t.verdict, t.given_attempts,
        coalesce(t.given_reason, CASE WHEN t.verdict = 'cancelled' THEN cancel_reason END, reason) AS shown_reason,
        t.given_error, t.result, t.began,
        CASE WHEN t.worker IS NULL THEN r.dispatch
            ELSE (r.dispatch::jsonb || jsonb_build_object('worker', t.worker))::text END AS new_dispatch),
kept AS (
    INSERT INTO evertick.history (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, args, labels, expires, caused_by, traceparent, losses, node, fence, created_at, started_at,
        is_cancel_requested, cancel_reason, progress, progress_text, verdict, attempts, reason, error, result, finished_at,
        dispatch)
    SELECT id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, args, labels, expires, caused_by, traceparent, losses, node, fence, created_at, began,
        is_cancel_requested, cancel_reason, progress, progress_text, verdict, given_attempts, shown_reason, given_error,
        result, (SELECT evertick.now_us()), new_dispatch
    FROM ended ON CONFLICT DO NOTHING RETURNING id),
events AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.finished', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, g.verdict, g.shown_reason, g.given_attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM ended) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)
SELECT array_agg(id::text) AS ids, (SELECT count(*) FROM kept) AS kept FROM ended;

-- name: apply_reports.answered_before
-- Which of these dispatches have ended or returned by a report. First read in the partitions around their creation ($4
-- to $5).
SELECT t.id::text AS id, t.fence FROM unnest($2::uuid[], $3::bigint[]) AS t(id, fence)
WHERE EXISTS (SELECT FROM evertick.runs r
        WHERE r.id = t.id AND r.app = $1 AND r.fence = t.fence AND r.started_at IS NULL AND r.dispatched_at IS NULL OFFSET 0)
    OR EXISTS (SELECT FROM evertick.attempts a
        WHERE a.run = t.id AND a.fence = t.fence AND a.app = $1 AND NOT a.is_lost AND a.fire_at BETWEEN $4 AND $5
        OFFSET 0)
    OR EXISTS (SELECT FROM evertick.history h
        WHERE h.id = t.id AND h.fence = t.fence AND h.fire_at BETWEEN $4 AND $5 AND h.app IS NOT DISTINCT FROM $1
        OFFSET 0);

-- name: check_dispatched.find_cancelled
-- Cancel requests, longest overdue first; not locked yet.
SELECT id::text AS id FROM evertick.runs
WHERE state = 'dispatched' AND is_cancel_requested AND app = $1 AND deadline <= (SELECT evertick.now_us())
ORDER BY deadline LIMIT $2;

-- name: check_dispatched.find_overdue
-- Overdue runs of channels whose reports were read ($3, by channel: until when), longest overdue first; not locked yet.
-- Scans those of other channels: they are many only while a queue is unreachable.
SELECT id::text AS id FROM evertick.runs
WHERE state = 'dispatched' AND app = $1 AND deadline <= (SELECT evertick.now_us()) AND NOT is_cancel_requested
    AND deadline <= ($3::jsonb ->> (dispatch::json ->> 'to'))::bigint
ORDER BY deadline LIMIT $2;

-- name: check_dispatched.lock
-- Those that are still overdue after the lock: a report may have come meanwhile. Locked rows are left to the session
-- that has them.
SELECT id::text AS id, fence, attempts, losses, at_most_once, is_cancel_requested, cancel_reason, dispatch, dispatched_at,
    pushed_at, taken_at, killed_at, deadline, schedule_id, frees, limit_key, evertick.now_us() AS now
FROM evertick.runs
WHERE app = $1 AND id = ANY($2::uuid[]) AND dispatched_at IS NOT NULL AND deadline <= (SELECT evertick.now_us())
ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: check_dispatched.withdraw
-- Delete messages that dispatch runs to be cancelled, unless they are being sent. Waits for a claim of one.
DELETE FROM evertick.outbox m WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM unnest($2::text[], $3::text[]) AS w(channel, key)
    JOIN evertick.outbox l ON l.app = $1 AND l.channel = w.channel AND l.key = w.key
    WHERE l.state IN ('waiting', 'dead') ORDER BY l.id FOR UPDATE OF l));

-- name: check_dispatched.unsent
-- Of these messages, those that are no longer in the outbox.
SELECT w.key FROM unnest($2::text[], $3::text[]) AS w(channel, key)
WHERE NOT EXISTS (SELECT FROM evertick.outbox m
    WHERE m.app = $1 AND m.channel = w.channel AND m.key = w.key OFFSET 0);

-- name: check_dispatched.revoke
-- Revoke claims, as in rehome.lose, with the new number of losses.
UPDATE evertick.runs r SET losses = t.losses, fence = NULL
FROM unnest($1::uuid[], $2::int[]) AS t(id, losses) WHERE r.id = ANY(ARRAY[t.id]);

-- name: check_dispatched.postpone
-- Postpone runs whose reports were not read for their whole timeout.
UPDATE evertick.runs r SET deadline = t.until
FROM unnest($1::uuid[], $2::bigint[]) AS t(id, until) WHERE r.id = ANY(ARRAY[t.id]);

-- name: check_dispatched.stopping
-- Workers were asked to stop, and have until then.
UPDATE evertick.runs r SET killed_at = (SELECT evertick.now_us()), deadline = t.until
FROM unnest($1::uuid[], $2::bigint[]) AS t(id, until) WHERE r.id = ANY(ARRAY[t.id]);

-- name: nodes
-- For display, oldest first.
SELECT n.*,
    (SELECT count(*) FROM evertick.runs r WHERE r.state = 'running' AND r.app = n.app AND r.node = n.id) AS running,
    (SELECT coalesce(json_agg(t.name ORDER BY t.name), '[]')::text FROM evertick.tasks t
        WHERE t.node = n.id AND t.app = n.app) AS tasks
FROM evertick.nodes n WHERE n.app = $1 ORDER BY n.started_at, n.id;

-- ================================================================================================= duties

-- part: duty
-- A duty `d` and its holder `n`, if that is alive.
d.name, n.id AS node, n.name AS node_name, d.term, d.since, d.ticked_at, d.next_at, d.error
FROM evertick.duties d LEFT JOIN evertick.nodes n ON n.id = d.node AND n.died_at IS NULL

-- name: duties
-- For display, by name.
SELECT @duty WHERE d.app = $1 AND d.name <> '' ORDER BY d.name;

-- name: duties.named
-- For nodes that declare them: one row per known duty; without any, one row with the time.
SELECT evertick.now_us() AS now, held.* FROM (VALUES (1)) AS always
LEFT JOIN (SELECT @duty WHERE d.app = $1 AND d.name = ANY($2::text[]) ORDER BY d.name) AS held ON true;

-- name: hold_duties.begin
-- Rows for duties that are new or were pruned. May wait for a session that prunes one.
INSERT INTO evertick.duties (app, name, term, since)
SELECT $1, t.name, 0, (SELECT evertick.now_us()) FROM unnest($3::text[]) AS t(name)
WHERE EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)
ORDER BY t.name
ON CONFLICT DO NOTHING;

-- name: hold_duties.lock
-- Before the guard that checks nodes: a holder that joined after the guard's statement began would look dead.
SELECT name FROM evertick.duties WHERE app = $1 AND name = ANY($2::text[]) ORDER BY name FOR UPDATE;

-- name: hold_duties.take
-- Take locked duties that no living node holds, if this node is alive. The term of a new row continues above all pruned
-- terms; read here, because the statement that inserts the row may have begun before the old row was pruned.
UPDATE evertick.duties d SET node = $2, since = (SELECT evertick.now_us()), term = 1 + CASE WHEN d.term > 0 THEN d.term
    ELSE coalesce((SELECT old.term FROM evertick.duties old WHERE old.app = $1 AND old.name = ''), 0) END
WHERE d.app = $1 AND d.name = ANY($3::text[])
    AND NOT EXISTS (SELECT FROM evertick.nodes k WHERE k.id = d.node AND k.died_at IS NULL)
    AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL);

-- name: tick_duty
-- Only by its living holder. A death that this statement does not see yet comes after it.
UPDATE evertick.duties
SET ticked_at = CASE WHEN $5::boolean THEN (SELECT evertick.now_us()) ELSE ticked_at END, next_at = $6, error = $7
WHERE app = $1 AND name = $2 AND node = $3 AND term = $4
    AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $3 AND k.died_at IS NULL);

-- name: resign_duties
-- Only under the given term: a duty that was resigned and taken again has another one.
UPDATE evertick.duties d SET node = NULL FROM unnest($3::text[], $4::bigint[]) AS t(name, term)
WHERE d.app = $1 AND d.name = t.name AND d.node = $2 AND d.term = t.term;

-- name: resign
-- All duties of a node.
UPDATE evertick.duties SET node = NULL WHERE node = $1;

-- ================================================================================================= upkeep

-- name: park_unknown.has_limited
-- Whether a run was released by a limit whose task no live node knows.
SELECT EXISTS (
    SELECT FROM evertick.runs r
    WHERE r.state = 'waiting' AND r.limit_key IS NOT NULL AND r.app = $1
        AND r.task NOT IN (SELECT t.name FROM evertick.tasks t WHERE t.app = $1)) AS has_limited;

-- name: park_unknown
-- Due runs of tasks that no live node knows leave the claim index. Runs in a node's own queue are left to recovery, and
-- without the gate ($3) those that a limit released are left to the next upkeep.
WITH unknown AS MATERIALIZED (
    SELECT r.id, r.limit_key FROM evertick.runs r
    WHERE r.state = 'waiting' AND r.app = $1 AND r.due_at <= (SELECT evertick.now_us())
        AND NOT (r.queue >= '@' AND r.queue < 'A') AND ($3 OR r.limit_key IS NULL)
        AND r.task NOT IN (SELECT t.name FROM evertick.tasks t WHERE t.app = $1)
    LIMIT $2 FOR UPDATE SKIP LOCKED),
parked AS (
    UPDATE evertick.runs SET state = 'parked', parked_for = 'unknown_task', limit_key = NULL
    WHERE id = ANY(ARRAY(SELECT id FROM unknown)))
SELECT id::text AS id, limit_key FROM unknown;

-- name: park_unknown.free
-- Parked runs that a live node can run: it knows the task, or has another signature.
UPDATE evertick.runs SET state = 'waiting', parked_for = NULL, task_hash = NULL WHERE id = ANY(ARRAY(
    SELECT r.id FROM evertick.runs r
    WHERE r.state = 'parked' AND r.app = $1 AND (
        (r.parked_for = 'unknown_task' AND EXISTS (
            SELECT FROM evertick.tasks t WHERE t.app = $1 AND t.name = r.task))
        OR (r.parked_for = 'bad_arguments' AND EXISTS (
            SELECT FROM evertick.tasks t WHERE t.app = $1 AND t.name = r.task AND t.hash IS DISTINCT FROM r.task_hash)))
    LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: prune.old_runs
-- By the index on fire_at. Only a cancelled run ends before its moment; it stays until that moment has passed.
SELECT id::text AS id, fire_at FROM evertick.history
WHERE app = $1 AND fire_at + 0 < $2 AND fire_at < $2 AND finished_at < $3 ORDER BY fire_at + 0 LIMIT $4;

-- name: prune.old_runs_without_day
-- The same for rows in the default partition, which is never dropped.
SELECT id::text AS id, fire_at FROM evertick.history_default
WHERE app = $1 AND fire_at + 0 < $2 AND finished_at < $2 ORDER BY fire_at + 0 LIMIT $3;

-- name: prune.schedules
-- The next schedules to check, including removed ones.
SELECT DISTINCT key, schedule_id FROM evertick.schedule_versions
WHERE app = $1 AND (key, schedule_id) > ($2, $3) ORDER BY key, schedule_id LIMIT $4;

-- name: prune.surplus_runs
-- All but the newest runs of each of these schedules.
SELECT h.id::text AS id, h.fire_at FROM unnest($1::bigint[]) AS w(id) CROSS JOIN LATERAL (
    SELECT id, fire_at FROM evertick.history WHERE schedule_id = w.id ORDER BY fire_at DESC, id DESC OFFSET $2 LIMIT $3) h
LIMIT $3;

-- name: prune.runs
-- Runs in history, with their attempts and log. $2 and $3 bound the partitions that are read.
WITH tries AS (DELETE FROM evertick.attempts WHERE run = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3),
lines AS (DELETE FROM evertick.log_chunks WHERE run = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3)
DELETE FROM evertick.history WHERE id = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3;

-- name: prune.gaps
-- Gaps that ended before $2.
DELETE FROM evertick.gaps WHERE id = ANY(ARRAY(
    SELECT id FROM evertick.gaps WHERE app = $1 AND last_at < $2 ORDER BY last_at LIMIT $3));

-- name: prune.starts
-- Starts that no rate counts any more.
DELETE FROM evertick.grants g USING (
    SELECT app, key, at FROM evertick.grants
    WHERE app = $1 AND until <= (SELECT evertick.now_us()) ORDER BY until LIMIT $2) o
WHERE g.app = o.app AND g.key = o.key AND g.at = o.at;

-- name: prune.unique
-- Unique keys whose period is over.
DELETE FROM evertick.unique_keys u USING (
    SELECT app, key FROM evertick.unique_keys
    WHERE app = $1 AND until <= (SELECT evertick.now_us()) ORDER BY until LIMIT $2) o
WHERE u.app = o.app AND u.key = o.key;

-- name: prune.nodes
-- Long dead nodes without runs left to recover, with their requests to check limits.
WITH old AS MATERIALIZED (
    SELECT n.id FROM evertick.nodes n
    WHERE n.app = $1 AND n.died_at < greatest($2, (SELECT evertick.now_us()) - $3::bigint)
        AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.state = 'running' AND r.app = $1 AND r.node = n.id)
    LIMIT $4),
looks AS (DELETE FROM evertick.looks WHERE node IN (SELECT id FROM old))
DELETE FROM evertick.nodes WHERE id IN (SELECT id FROM old);

-- name: prune.duties
-- Duties that were neither held nor done for long, and whose last holder was pruned. The age is repeated outside,
-- because it is then checked again in a row that was just taken.
DELETE FROM evertick.duties WHERE app = $1 AND greatest(since, ticked_at) < least($2, (SELECT evertick.now_us()) - $3::bigint)
    AND name = ANY(ARRAY(
        SELECT d.name FROM evertick.duties d
        WHERE d.app = $1 AND d.name <> '' AND greatest(d.since, d.ticked_at) < $2
            AND NOT EXISTS (SELECT FROM evertick.nodes n WHERE n.id = d.node)
        LIMIT $4))
RETURNING term;

-- name: prune.duty_terms
-- The greatest pruned term.
INSERT INTO evertick.duties AS d (app, name, term, since) VALUES ($1, '', $2, (SELECT evertick.now_us()))
ON CONFLICT (app, name) DO UPDATE SET term = greatest(d.term, excluded.term);

-- name: prune.finished_schedules
-- Finished one-shots: no cursor, not paused, not declared, no live run, no run in history.
SELECT s.id FROM evertick.due d JOIN evertick.schedules s ON s.id = d.schedule_id
WHERE d.app = $1 AND d.fire_at IS NULL AND d.at IS NULL AND d.after_end IS NULL
    AND s.created_at < $2 AND s.pause IS NULL AND s.declared IS NULL
    AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = s.id)
    AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.schedule_id = s.id)
LIMIT $3;

-- name: prune.still_finished
-- Of those, the ones that are still finished after the lock.
SELECT d.schedule_id AS id FROM evertick.due d
WHERE d.schedule_id = ANY($1::bigint[]) AND d.fire_at IS NULL AND d.at IS NULL AND d.after_end IS NULL
    AND NOT EXISTS (SELECT FROM evertick.schedules s
        WHERE s.id = d.schedule_id AND (s.pause IS NOT NULL OR s.declared IS NOT NULL))
    AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = d.schedule_id);

-- name: prune.versions
-- Definitions of removed schedules that no run refers to.
DELETE FROM evertick.schedule_versions v USING unnest($2::text[], $3::bigint[]) AS w(key, schedule_id)
WHERE v.app = $1 AND v.key = w.key AND v.schedule_id = w.schedule_id
    AND NOT EXISTS (SELECT FROM evertick.schedules s WHERE s.id = v.schedule_id)
    AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = v.schedule_id)
    AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.schedule_id = v.schedule_id);

-- name: pulse.failed
-- The newest by their end, by the partial index of failed runs. A rerun that is live or was executed counts in place of
-- the run that it repeats.
SELECT coalesce(f.schedule_key, f.task) AS name, f.verdict, count(*) AS count FROM (
    SELECT id::text AS id, schedule_key, task, verdict FROM evertick.history
    WHERE verdict IN ('failed', 'lost') AND app = $1 AND finished_at > $2 AND fire_at > $3
    ORDER BY finished_at DESC LIMIT $4) f
WHERE NOT EXISTS (SELECT FROM evertick.runs r WHERE r.cause = 'rerun' AND r.app = $1 AND r.caused_by = f.id)
    AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.cause = 'rerun' AND h.app = $1 AND h.caused_by = f.id
        AND h.fire_at > $3 AND h.verdict IN ('succeeded', 'failed', 'lost'))
GROUP BY 1, 2 ORDER BY 3 DESC, 1;

-- name: pulse
-- Counts stop at a bound, beyond which they tell a reader nothing. The oldest run by one index search per queue and
-- priority.
WITH RECURSIVE queues(queue) AS (
    SELECT min(queue) FROM evertick.runs WHERE state = 'waiting' AND app = $1
    UNION ALL
    SELECT (SELECT min(r.queue) FROM evertick.runs r WHERE r.state = 'waiting' AND r.app = $1 AND r.queue > queues.queue)
    FROM queues WHERE queues.queue IS NOT NULL),
lanes(queue, priority) AS (
    SELECT queue, 9223372036854775807::bigint FROM queues WHERE queue IS NOT NULL
    UNION ALL
    SELECT l.queue, (SELECT max(r.priority) FROM evertick.runs r
        WHERE r.state = 'waiting' AND r.app = $1 AND r.queue = l.queue AND r.priority < l.priority)
    FROM lanes l WHERE l.priority IS NOT NULL)
SELECT evertick.now_us() AS now,
    (SELECT count(*) FROM (SELECT FROM evertick.runs WHERE state = 'waiting' AND app = $1 LIMIT $2) w) AS waiting,
    (SELECT count(*) FROM (SELECT FROM evertick.runs WHERE state = 'running' AND app = $1 LIMIT $2) w) AS running,
    (SELECT count(*) FROM (SELECT FROM evertick.runs WHERE state = 'parked' AND app = $1 LIMIT $2) w) AS parked,
    (SELECT count(*) FROM (SELECT FROM evertick.runs WHERE state = 'blocked' AND app = $1 LIMIT $2) w) AS blocked,
    (SELECT count(*) FROM (SELECT FROM evertick.runs WHERE state = 'dispatched' AND app = $1 LIMIT $2) w) AS dispatched,
    (SELECT count(*) FROM (SELECT FROM evertick.schedules WHERE app = $1 LIMIT $3) w) AS schedules,
    (SELECT min(first.due_at) FROM lanes l CROSS JOIN LATERAL (
        SELECT r.due_at FROM evertick.runs r
        WHERE r.state = 'waiting' AND r.app = $1 AND r.queue = l.queue AND r.priority = l.priority
        ORDER BY r.due_at LIMIT 1) first) AS oldest_due_at;

-- ================================================================================================= partitions

-- name: partitions
-- The days of a table.
SELECT c.relname AS name FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1) AND c.relname !~ '_default$' ORDER BY c.relname;

-- name: partitions.lock
-- One session at a time; a second one does not wait.
SELECT pg_try_advisory_xact_lock(hashtextextended('evertick.partitions' || $1::text, 0)) AS is_mine;

-- name: partitions.keep_from
-- From which moment an app keeps its history.
INSERT INTO evertick.kept_from AS k (app, moment) VALUES ($1, $2)
ON CONFLICT (app) DO UPDATE SET moment = excluded.moment WHERE k.moment <> excluded.moment;

-- name: partitions.is_kept
-- Whether the day from $1 to $2 must stay: one of its apps keeps history from before $3, or one of its runs ended so
-- late that it is still kept. One index search per app, and one for the latest end of more than a day after its moment.
WITH RECURSIVE apps(app) AS (
    SELECT min(h.app) FROM evertick.history h WHERE h.fire_at >= $1 AND h.fire_at < $2
    UNION ALL
    SELECT (SELECT min(h.app) FROM evertick.history h WHERE h.fire_at >= $1 AND h.fire_at < $2 AND h.app > apps.app)
    FROM apps WHERE apps.app IS NOT NULL),
kept AS MATERIALIZED (
    SELECT coalesce(k.moment, -9223372036854775808) AS moment
    FROM apps a LEFT JOIN evertick.kept_from k ON k.app = a.app WHERE a.app IS NOT NULL)
SELECT EXISTS (SELECT FROM kept WHERE moment < $3) OR EXISTS (
    SELECT FROM evertick.history h
    WHERE h.fire_at >= $1 AND h.fire_at < $2 AND h.finished_at >= h.fire_at + 86400000000
        AND h.finished_at >= (SELECT min(moment) FROM kept)) AS is_kept;

-- name: apps
-- By name; one index search per app in the large tables.
WITH RECURSIVE apps(app) AS (
    SELECT ''::text COLLATE "C"
    UNION ALL
    SELECT least(
        (SELECT min(s.app) FROM evertick.schedules s WHERE s.app > apps.app),
        (SELECT min(r.app) FROM evertick.runs r WHERE r.state = 'waiting' AND r.app > apps.app),
        (SELECT min(h.app) FROM evertick.history h WHERE h.app > apps.app),
        (SELECT min(n.app) FROM evertick.nodes n WHERE n.app > apps.app))
    FROM apps WHERE apps.app IS NOT NULL)
SELECT app FROM apps WHERE app <> '' LIMIT $1;

-- ================================================================================================= maintenance

-- name: maintenance.about
-- Store id, schema version and size.
SELECT m.store_id, m.version, (
    SELECT coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind = 'r') AS bytes
FROM evertick.meta m;

-- name: maintenance.objects
-- Tables, columns, indexes, sequences and functions, except the partitions of days.
SELECT CASE WHEN c.relkind IN ('r', 'p') THEN 'table' WHEN c.relkind = 'S' THEN 'sequence'
        WHEN i.indisunique THEN 'unique index' ELSE 'index' END AS kind, c.relname::text AS name
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
WHERE n.nspname = $1 AND (c.relkind IN ('r', 'p', 'i', 'I', 'S') AND NOT c.relispartition
    OR c.relkind = 'r' AND c.relname IN ('history_default', 'attempts_default', 'log_chunks_default'))
UNION ALL
SELECT 'column', c.relname || '.' || a.attname
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'function', p.proname::text FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = $1;

-- name: maintenance.options
-- The storage options of each table.
SELECT c.relname AS name, coalesce(c.reloptions, '{}') AS options
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r';

-- name: maintenance.invalid_indexes
-- Left by an interrupted REINDEX.
SELECT c.relname AS name FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND NOT i.indisvalid ORDER BY c.relname;

-- name: maintenance.oldest
-- The oldest moment in history, by one index search per app.
WITH RECURSIVE apps(app) AS (
    SELECT min(app) FROM evertick.history
    UNION ALL
    SELECT (SELECT min(h.app) FROM evertick.history h WHERE h.app > apps.app) FROM apps WHERE apps.app IS NOT NULL)
SELECT min((SELECT min(h.fire_at + 0) FROM evertick.history h WHERE h.app = apps.app)) AS oldest_at
FROM apps WHERE apps.app IS NOT NULL;

-- name: maintenance.both
-- A run is live or done, never both.
SELECT count(*) AS count FROM (
    SELECT FROM evertick.runs r JOIN evertick.history h ON h.id = r.id LIMIT $1) b;

-- name: maintenance.no_cursor
-- A schedule without its cursor never fires.
SELECT count(*) AS count FROM (
    SELECT FROM evertick.schedules s
    WHERE NOT EXISTS (SELECT FROM evertick.due d WHERE d.schedule_id = s.id) LIMIT $1) b;

-- name: maintenance.no_schedule
-- A cursor without its schedule is read by every tick.
SELECT count(*) AS count FROM (
    SELECT FROM evertick.due d
    WHERE NOT EXISTS (SELECT FROM evertick.schedules s WHERE s.id = d.schedule_id) LIMIT $1) b;

-- ================================================================================================= outbox

-- part: new_messages
-- Insert messages whose id and key are new. Ordered by key, so that no two sessions deadlock. Waits for a session that
-- writes the same key.
INSERT INTO evertick.outbox AS m (app, id, channel, key, body, headers, state, due_at, created_at, caused_by, format,
    dispatches)
SELECT $1, n.id, coalesce(n.channel, ($3::text[])[1]), n.key, n.body, n.headers, 'waiting', c.now + coalesce(n.delay, 0), c.now,
    n.caused_by, coalesce(n.format, 1), n.dispatches
FROM (SELECT evertick.now_us() AS now) c,
    unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::int[], $10::bigint[])
    AS n(id, channel, key, body, headers, delay, caused_by, format, dispatches)
ORDER BY coalesce(n.channel, ($3::text[])[1]), n.key
ON CONFLICT DO NOTHING

-- name: send
-- Messages of a user.
@new_messages RETURNING m.*;

-- name: send.with_cause
-- Messages of the change in the same transaction.
@new_messages;

-- name: send.known
-- The existing messages in place of those not inserted: same id, or same key.
SELECT m.* FROM evertick.outbox m WHERE m.id = ANY($2::uuid[]) AND m.app IS NOT DISTINCT FROM $1
UNION
SELECT m.* FROM unnest($3::text[], $4::text[]) AS n(channel, key)
JOIN evertick.outbox m ON m.app = $1 AND m.channel = n.channel AND m.key = n.key;

-- name: claim_messages
-- One statement: the fence is drawn after the messages were locked. Always returns a row. Also lists abandoned
-- messages: their node is dead or missing, or it is the calling node, which does not hold them.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
wanted AS MATERIALIZED (
    SELECT w.channel, w.room FROM unnest($3::text[], $4::int[]) AS w(channel, room)
    WHERE EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)),
picked AS MATERIALIZED (
    SELECT p.id FROM wanted w CROSS JOIN LATERAL (
        SELECT m.id FROM evertick.outbox m
        WHERE m.state = 'waiting' AND m.app = $1 AND m.channel = w.channel AND m.due_at <= (SELECT now FROM clock)
            AND @readable_message
        ORDER BY m.due_at LIMIT w.room FOR UPDATE SKIP LOCKED) p),
drawn AS MATERIALIZED (SELECT nextval('evertick.fence') AS fence FROM (SELECT FROM picked LIMIT 1) p),
taken AS (
    UPDATE evertick.outbox m
    SET state = 'sending', node = $2, fence = (SELECT fence FROM drawn), claimed_at = (SELECT now FROM clock)
    WHERE m.id = ANY(ARRAY(SELECT id FROM picked))
    RETURNING m.id::text AS id, m.fence, m.channel, m.key, m.body, m.headers, m.attempts, m.due_at, m.created_at,
        m.caused_by, m.error, m.dispatches),
left_behind AS MATERIALIZED (
    SELECT l.id, l.fence FROM wanted w CROSS JOIN LATERAL (
        SELECT m.id, m.fence FROM evertick.outbox m
        WHERE m.state = 'sending' AND m.app = $1 AND m.channel = w.channel
            AND CASE WHEN m.node = $2 THEN m.id NOT IN (SELECT unnest($5::uuid[])) ELSE NOT EXISTS (
                SELECT FROM evertick.nodes n WHERE n.id = m.node AND n.died_at IS NULL OFFSET 0) END
        LIMIT 1000) l)
SELECT c.now, (
        SELECT min(d.due_at) FROM wanted w CROSS JOIN LATERAL (
            SELECT m.due_at FROM evertick.outbox m
            WHERE m.state = 'waiting' AND m.app = $1 AND m.channel = w.channel AND @readable_message
                AND m.id NOT IN (SELECT id FROM picked)
            ORDER BY m.due_at LIMIT 1) d) AS next_due_at,
    ARRAY(SELECT id::text FROM left_behind ORDER BY id) AS left_ids,
    ARRAY(SELECT fence FROM left_behind ORDER BY id) AS left_fences,
    t.*
FROM clock c LEFT JOIN taken t ON true ORDER BY t.due_at;

-- name: claim_messages.release
-- Make abandoned messages due, unless they were claimed again since (another fence). A death costs an attempt, even if
-- the message was sent. Without a fence, the old owner gets "lost".
UPDATE evertick.outbox m
SET state = 'waiting', due_at = (SELECT evertick.now_us()), claimed_at = NULL, node = NULL, fence = NULL,
    attempts = m.attempts + CASE WHEN m.node = $2 THEN 0 ELSE 1 END, error = CASE WHEN m.node = $2 THEN m.error ELSE $5 END
WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM unnest($3::uuid[], $4::bigint[]) AS f(id, fence)
    JOIN evertick.outbox l ON l.id = ANY(ARRAY[f.id]) AND l.fence = f.fence AND l.app IS NOT DISTINCT FROM $1
        AND l.claimed_at IS NOT NULL
    ORDER BY f.id FOR UPDATE OF l SKIP LOCKED));

-- name: settle_messages
-- Guarded by the claim. A sent message is remembered by its key, without its body. Values that all share are sent once.
-- Returns the ids only if some are missing.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
settled AS (
    UPDATE evertick.outbox m
    SET state = CASE WHEN s.kind IN ('sent', 'dead') THEN s.kind ELSE 'waiting' END,
        attempts = CASE s.kind WHEN 'release' THEN m.attempts ELSE s.attempts END,
        error = CASE WHEN s.kind IN ('sent', 'dead') THEN s.error ELSE coalesce(s.error, m.error) END,
        due_at = CASE WHEN s.kind IN ('sent', 'dead') THEN m.due_at ELSE (SELECT now FROM clock) + s.delay END,
        settled_at = CASE WHEN s.kind IN ('sent', 'dead') THEN (SELECT now FROM clock) END,
        forget_at = CASE WHEN s.kind IN ('sent', 'dead') THEN (SELECT now FROM clock) + s.remember END,
        body = CASE s.kind WHEN 'sent' THEN 'null' ELSE m.body END,
        headers = CASE s.kind WHEN 'sent' THEN NULL ELSE m.headers END, claimed_at = NULL
    FROM (SELECT id, coalesce(fence, ($4::bigint[])[1]) AS fence, coalesce(kind, ($5::text[])[1]) AS kind,
            coalesce(attempts, ($6::int[])[1]) AS attempts, coalesce(delay, ($7::bigint[])[1]) AS delay,
            coalesce(remember, ($8::bigint[])[1]) AS remember, error
        FROM unnest($3::uuid[], $4::bigint[], $5::text[], $6::int[], $7::bigint[], $8::bigint[], $9::text[])
            AS t(id, fence, kind, attempts, delay, remember, error)) s
    WHERE m.id = ANY(ARRAY[s.id]) AND m.fence = s.fence AND m.node = $2 AND m.app IS NOT DISTINCT FROM $1
        AND m.claimed_at IS NOT NULL
    RETURNING m.id)
SELECT CASE WHEN count(*) < cardinality($3) THEN coalesce(array_agg(id::text), '{}') END AS ids FROM settled;

-- name: settle_messages.answered_before
-- Settled before by these claims.
SELECT m.id::text AS id, m.fence FROM unnest($3::uuid[], $4::bigint[]) AS s(id, fence)
JOIN evertick.outbox m ON m.id = ANY(ARRAY[s.id]) AND m.fence = s.fence AND m.node = $2
WHERE m.app IS NOT DISTINCT FROM $1 AND m.claimed_at IS NULL;

-- name: messages
-- For display, newest first: ids are in the order of time.
SELECT m.* FROM evertick.outbox m
WHERE m.id BETWEEN $5::uuid AND $6::uuid AND m.app IS NOT DISTINCT FROM $1
    AND ($2::text IS NULL OR m.channel = $2) AND ($3::text[] IS NULL OR m.state = ANY($3))
ORDER BY m.id DESC LIMIT $4;

-- name: messages.by_id
-- Messages with these ids.
SELECT m.* FROM evertick.outbox m
WHERE m.id = ANY($5::uuid[]) AND m.app IS NOT DISTINCT FROM $1
    AND ($2::text IS NULL OR m.channel = $2) AND ($3::text[] IS NULL OR m.state = ANY($3))
ORDER BY m.id DESC LIMIT $4;

-- name: messages.by_key
-- The message of a channel with this key.
SELECT m.* FROM evertick.outbox m
WHERE m.app = $1 AND m.channel = $2::text AND m.key = $5 AND ($3::text[] IS NULL OR m.state = ANY($3)) LIMIT $4;

-- name: messages.unsent
-- Without reading sent messages, which are many.
SELECT * FROM (
    SELECT m.* FROM evertick.outbox m
    WHERE m.state = 'waiting' AND m.app = $1 AND 'waiting' = ANY($3::text[]) AND ($2::text IS NULL OR m.channel = $2)
    UNION ALL
    SELECT m.* FROM evertick.outbox m
    WHERE m.state = 'sending' AND m.app = $1 AND 'sending' = ANY($3) AND ($2 IS NULL OR m.channel = $2)
    UNION ALL
    SELECT m.* FROM evertick.outbox m
    WHERE m.state = 'dead' AND m.app = $1 AND 'dead' = ANY($3) AND ($2 IS NULL OR m.channel = $2)) u
ORDER BY id DESC LIMIT $4;

-- name: channels
-- Channels with unsent messages, each by an index search; counts stop at a bound.
WITH RECURSIVE channels(name) AS (
    SELECT ''::text COLLATE "C"
    UNION ALL
    SELECT least(
        (SELECT min(m.channel) FROM evertick.outbox m WHERE m.state = 'waiting' AND m.app = $1 AND m.channel > c.name),
        (SELECT min(m.channel) FROM evertick.outbox m WHERE m.state = 'sending' AND m.app = $1 AND m.channel > c.name),
        (SELECT min(m.channel) FROM evertick.outbox m WHERE m.state = 'dead' AND m.app = $1 AND m.channel > c.name))
    FROM channels c WHERE c.name IS NOT NULL)
SELECT c.name AS channel,
    (SELECT count(*) FROM (SELECT FROM evertick.outbox m
        WHERE m.state = 'waiting' AND m.app = $1 AND m.channel = c.name LIMIT $2) w) AS waiting,
    (SELECT count(*) FROM (SELECT FROM evertick.outbox m
        WHERE m.state = 'sending' AND m.app = $1 AND m.channel = c.name LIMIT $2) w) AS sending,
    (SELECT count(*) FROM (SELECT FROM evertick.outbox m
        WHERE m.state = 'dead' AND m.app = $1 AND m.channel = c.name LIMIT $2) w) AS dead,
    (SELECT m.due_at FROM evertick.outbox m
        WHERE m.state = 'waiting' AND m.app = $1 AND m.channel = c.name ORDER BY m.due_at LIMIT 1) AS oldest_due_at,
    (SELECT m.created_at FROM evertick.outbox m
        WHERE m.state IN ('waiting', 'sending') AND m.attempts > 0 AND m.app = $1 AND m.channel = c.name
        ORDER BY m.created_at LIMIT 1) AS oldest_failing_at
FROM channels c WHERE c.name <> '' ORDER BY c.name;

-- name: retry_messages
-- Due now; a dead one starts with no attempt spent. Ignores a message whose run is no longer dispatched by it.
UPDATE evertick.outbox m
SET attempts = CASE m.state WHEN 'dead' THEN 0 ELSE m.attempts END, state = 'waiting',
    due_at = (SELECT evertick.now_us()), forget_at = NULL, settled_at = NULL, node = NULL, fence = NULL
WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM evertick.outbox l
    WHERE l.id = ANY($2::uuid[]) AND l.app IS NOT DISTINCT FROM $1 AND l.state IN ('waiting', 'dead')
        AND (l.dispatches IS NULL OR EXISTS (SELECT FROM evertick.runs r
            WHERE r.id = l.caused_by::uuid AND r.app = $1 AND r.fence = l.dispatches
                AND r.dispatched_at IS NOT NULL OFFSET 0))
    ORDER BY l.id FOR UPDATE))
RETURNING m.id::text AS id;

-- name: hasten_messages
-- Due now: messages that failed before, because the broker is reachable again. Locked ones are left to their session.
-- `+ 0` prevents the use of the index of failing messages, which would scan due messages again for every batch.
WITH moment AS MATERIALIZED (SELECT evertick.now_us() AS now)
UPDATE evertick.outbox m SET due_at = (SELECT now FROM moment)
WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM evertick.outbox l
    WHERE l.state = 'waiting' AND l.app = $1 AND l.channel = $2 AND l.due_at > (SELECT now FROM moment)
        AND l.attempts + 0 > 0
    ORDER BY l.due_at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING m.id;

-- name: drop_messages.dispatch
-- The runs that these messages dispatch.
SELECT caused_by AS id FROM evertick.outbox
WHERE id = ANY($2::uuid[]) AND app IS NOT DISTINCT FROM $1 AND state IN ('waiting', 'dead') AND dispatches IS NOT NULL;

-- name: drop_messages.cancel
-- Request the cancel of locked runs whose dispatch message is dropped.
UPDATE evertick.runs r
SET is_cancel_requested = true, cancel_reason = coalesce(r.cancel_reason, $3), deadline = (SELECT evertick.now_us())
FROM evertick.outbox m
WHERE m.id = ANY($2::uuid[]) AND m.app IS NOT DISTINCT FROM $1 AND m.state IN ('waiting', 'dead')
    AND m.dispatches IS NOT NULL AND r.id = ANY(ARRAY[m.caused_by::uuid]) AND r.app = $1 AND r.fence = m.dispatches
    AND r.dispatched_at IS NOT NULL AND r.pushed_at IS NULL;

-- name: drop_messages
-- Delete messages that are not being sent.
DELETE FROM evertick.outbox m WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM evertick.outbox l
    WHERE l.id = ANY($2::uuid[]) AND l.app IS NOT DISTINCT FROM $1 AND l.state IN ('waiting', 'dead') ORDER BY l.id FOR UPDATE))
RETURNING m.id::text AS id;

-- name: prune.messages
-- Sent and dead messages whose time to be remembered is over.
DELETE FROM evertick.outbox WHERE id = ANY(ARRAY(
    SELECT id FROM evertick.outbox
    WHERE app = $1 AND forget_at <= (SELECT evertick.now_us()) ORDER BY forget_at LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: join.channels
-- The channels that it delivers, and the tasks that it leaves to others.
UPDATE evertick.nodes SET channels = $2, leaves = $3 WHERE id = $1;

-- ================================================================================================= feed

-- name: feed.publish
-- Events as given.
INSERT INTO evertick.feed (app, epoch, at, kind, body)
SELECT $1, @feed_epoch, (SELECT evertick.now_us()), $2::text, w.body FROM unnest($3::text[]) AS w(body)
WHERE @feed_epoch IS NOT NULL;

-- name: feed.publish_runs
-- Live runs as they are now; without a given reason, with their own.
INSERT INTO evertick.feed (app, epoch, at, kind, body)
SELECT $1, @feed_epoch, (SELECT evertick.now_us()), $2::text, json_agg(json_build_array(r.id, r.schedule_key, r.task,
    r.fire_at, r.due_at, r.cause, NULL, coalesce(w.reason, r.parked_for, r.reason), r.attempts, r.node)
    ORDER BY w.place)::text
FROM unnest($3::uuid[], $4::text[]) WITH ORDINALITY AS w(id, reason, place)
JOIN evertick.runs r ON r.id = ANY(ARRAY[w.id]) AND r.app = $1
WHERE @feed_epoch IS NOT NULL GROUP BY (w.place - 1) / 500;

-- name: keep_feed
-- An existing feed continues, with the new time.
INSERT INTO evertick.feeds AS f (app, epoch, kept, cluster)
SELECT $1, $2, $3, c.system_identifier FROM pg_control_system() c
ON CONFLICT (app) DO UPDATE SET kept = excluded.kept;

-- name: keep_feed.end
-- Its rows are pruned later.
DELETE FROM evertick.feeds WHERE app = $1;

-- name: feed.renew
-- In another server transaction ids start again, and the order of the events is lost.
UPDATE evertick.feeds f SET epoch = $2, cluster = c.system_identifier, pruned_txid = '0', pruned_seq = 0
FROM pg_control_system() c WHERE f.app = $1 AND f.cluster <> c.system_identifier;

-- name: feed
-- A part of the feed and its bounds, in one snapshot; always a row, if there is a feed. Returns only events below the
-- oldest open transaction, because nothing can be committed there any more.
WITH bounds AS MATERIALIZED (
    SELECT f.epoch, f.pruned_txid, f.pruned_seq, f.cluster, pg_snapshot_xmin(pg_current_snapshot()) AS open_txid
    FROM evertick.feeds f WHERE f.app = $1)
SELECT (SELECT evertick.now_us()) AS now, b.epoch, b.pruned_txid::text::bigint AS pruned_txid, b.pruned_seq,
    b.open_txid::text::bigint AS open_txid,
    b.cluster = (SELECT system_identifier FROM pg_control_system()) AS is_in_order,
    r.txid::text::bigint AS txid, r.seq, r.at, r.kind, r.body
FROM bounds b LEFT JOIN LATERAL (
    SELECT e.txid, e.seq, e.at, e.kind, e.body FROM evertick.feed e
    WHERE e.app = $1 AND e.epoch = b.epoch AND (e.txid, e.seq) >= ($2::text::xid8, $3::bigint) AND e.txid < b.open_txid
        AND (e.txid, e.seq) > (b.pruned_txid, b.pruned_seq) AND e.at >= $4 AND ($5::text[] IS NULL OR e.kind = ANY($5::text[]))
    ORDER BY e.txid, e.seq LIMIT $6) r ON true
ORDER BY r.txid, r.seq;

-- name: feed_state
-- How long the feed is kept, and the transaction that delays it: the oldest one on the whole server that has written
-- something and is still open.
WITH bounds AS MATERIALIZED (
    SELECT f.epoch, f.kept, pg_snapshot_xmin(pg_current_snapshot()) AS open_txid
    FROM evertick.feeds f WHERE f.app = $1)
SELECT (SELECT evertick.now_us()) AS now, b.kept,
    (SELECT e.at FROM evertick.feed e WHERE e.app = $1 AND e.epoch = b.epoch AND e.txid >= b.open_txid
        ORDER BY e.txid, e.seq LIMIT 1) AS held_at,
    coalesce(
        (SELECT format('the transaction of process %s (%s) in database %s', a.pid,
            coalesce(nullif(a.application_name, ''), 'no name'), a.datname)
        FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid = b.open_txid::xid LIMIT 1),
        (SELECT format('the prepared transaction %s in database %s', p.gid, p.database)
        FROM pg_catalog.pg_prepared_xacts p WHERE p.transaction = b.open_txid::xid LIMIT 1)) AS holder
FROM bounds b;

-- name: prune.feed
-- Checks only the oldest events, so that a feed with nothing to prune costs little. Never deletes events that were not
-- readable yet. Cursors before the last deleted event are refused from now on.
WITH bounds AS MATERIALIZED (
    SELECT f.epoch, evertick.now_us() - f.kept AS before, pg_snapshot_xmin(pg_current_snapshot()) AS open_txid
    FROM evertick.feeds f WHERE f.app = $1),
old AS MATERIALIZED (
    SELECT o.epoch, o.txid, o.seq FROM bounds b CROSS JOIN LATERAL (
        SELECT e.epoch, e.txid, e.seq, e.at FROM evertick.feed e
        WHERE e.app = $1 AND e.epoch = b.epoch AND e.txid < b.open_txid ORDER BY e.txid, e.seq LIMIT $2) o
    WHERE o.at < b.before),
deleted AS (
    DELETE FROM evertick.feed e USING old o
    WHERE e.app = $1 AND e.epoch = o.epoch AND e.txid = o.txid AND e.seq = o.seq),
marked AS (
    UPDATE evertick.feeds f SET pruned_txid = l.txid, pruned_seq = l.seq
    FROM (SELECT txid, seq FROM old ORDER BY txid DESC, seq DESC LIMIT 1) l
    WHERE f.app = $1 AND (f.pruned_txid, f.pruned_seq) < (l.txid, l.seq))
SELECT count(*) AS count FROM old;

-- name: prune.feed_ends
-- Rows of feeds that were turned off, or whose order was lost.
DELETE FROM evertick.feed WHERE ctid = ANY(ARRAY(
    SELECT w.ctid FROM (
        SELECT e.ctid FROM evertick.feed e WHERE e.app = $1 AND e.epoch < coalesce(@feed_epoch, '')
        UNION ALL
        SELECT e.ctid FROM evertick.feed e WHERE e.app = $1 AND e.epoch > coalesce(@feed_epoch, '')) w LIMIT $2));

-- ================================================================================================= a wrong clock
-- Times up to $2 are correct: one minute after the store's now.

-- part: run_written_at
-- The latest time at which a live run `r` was written.
greatest(r.created_at, r.started_at, r.dispatched_at, r.pushed_at, r.taken_at, r.killed_at)

-- part: run_waits_for_wrong_time
-- A live run `r` that was put back or released at a time in the future: after the earliest known wrong time ($3), or
-- later than any run waits ($4).
r.state IN ('waiting', 'blocked', 'parked') AND r.due_at > $2::bigint AND (
    (r.due_at >= $3::bigint AND (r.attempts > 0 OR r.losses > 0 OR r.fence IS NOT NULL
        OR (r.cause IN ('fire', 'trigger', 'rerun') AND r.schedule_id IS NOT NULL AND r.fire_at <= $2::bigint)))
    OR (r.due_at > $4::bigint AND (r.attempts > 0 OR r.losses > 0)))

-- name: clock.runs
-- Live runs with times of past events in the future, and runs that wait for such a time.
SELECT r.id::text AS id, CASE WHEN @run_written_at > $2::bigint THEN @run_written_at END AS at FROM evertick.runs r
WHERE r.app = $1 AND (@run_written_at > $2::bigint OR (@run_waits_for_wrong_time)) LIMIT $5;

-- name: clock.history
-- Runs that began or ended at such a time: those of recent moments, and those in the index of late ends.
SELECT h.id::text AS id, greatest(h.created_at, h.started_at, h.finished_at) AS at FROM evertick.history h
WHERE h.app = $1 AND (h.fire_at + 0) > $2::bigint - 172800000000
    AND greatest(h.created_at, h.started_at, h.finished_at) > $2::bigint
UNION
SELECT h.id::text, greatest(h.created_at, h.started_at, h.finished_at) FROM evertick.history h
WHERE h.app = $1 AND h.finished_at > $2::bigint AND h.finished_at >= h.fire_at + 86400000000
LIMIT $3;

-- name: clock.attempts
-- The same for attempts.
SELECT run::text AS run, fence, greatest(started_at, finished_at) AS at FROM evertick.attempts
WHERE app = $1 AND greatest(started_at, finished_at) > $2::bigint LIMIT $3;

-- name: clock.gaps
-- Gaps that were recorded at such a time.
SELECT id, schedule_id, schedule_key, first_at, last_at, recorded_at AS at FROM evertick.gaps
WHERE app = $1 AND recorded_at > $2::bigint LIMIT $3;

-- name: clock.keys
-- Keys held for a period by runs that were created at such a time.
SELECT u.key, coalesce(r.created_at, h.created_at) AS at FROM evertick.unique_keys u
LEFT JOIN evertick.runs r ON r.id = u.run
LEFT JOIN evertick.history h ON h.id = u.run AND h.fire_at = u.fire_at
WHERE u.app = $1 AND u.until > $2::bigint AND coalesce(r.created_at, h.created_at) > $2::bigint LIMIT $3;

-- name: clock.messages
-- The same for messages.
SELECT m.id::text AS id,
    CASE WHEN greatest(m.created_at, m.claimed_at, m.settled_at) > $2::bigint
        THEN greatest(m.created_at, m.claimed_at, m.settled_at) END AS at
FROM evertick.outbox m
WHERE m.app = $1 AND (greatest(m.created_at, m.claimed_at, m.settled_at) > $2::bigint
    OR (m.state = 'waiting' AND m.due_at > $2::bigint AND (
        (m.due_at >= $3::bigint AND (m.attempts > 0 OR m.fence IS NOT NULL))
        OR (m.due_at > $4::bigint AND m.attempts > 0)))) LIMIT $5;

-- name: clock.nodes
-- Nodes that started, sent a heartbeat or died at such a time.
SELECT id, greatest(started_at, beat_at, died_at) AS at FROM evertick.nodes
WHERE app = $1 AND greatest(started_at, beat_at, died_at) > $2::bigint LIMIT $3;

-- name: clock.duties
-- Duties that were taken or done at such a time.
SELECT name, greatest(since, ticked_at) AS at FROM evertick.duties
WHERE app = $1 AND greatest(since, ticked_at) > $2::bigint LIMIT $3;

-- name: clock.events
-- Events of the feed that were written at such a time.
SELECT seq, at FROM evertick.feed WHERE app = $1 AND at > $2::bigint LIMIT $3;

-- name: clock.schedules
-- Schedules that were created at such a time.
SELECT id, created_at AS at FROM evertick.schedules WHERE app = $1 AND created_at > $2::bigint LIMIT $3;

-- name: clock.lock_runs
-- In the lock order of all transactions.
SELECT r.id::text AS id FROM evertick.runs r WHERE r.app = $1 AND r.id = ANY($2::uuid[]) ORDER BY r.id FOR UPDATE;

-- name: clock.mend_runs
-- Waiting runs become due now; runs that were never tried, after their original delay. Owners and fences stay. Rows
-- that belong to a run get its new moment.
WITH old AS (SELECT r.id AS old_id, r.fire_at AS old_fire_at FROM evertick.runs r
        WHERE r.app = $1 AND r.id = ANY($2::uuid[])),
    mended AS (
    UPDATE evertick.runs
    SET due_at = CASE WHEN due_at <= $4::bigint THEN due_at
            WHEN created_at > $4::bigint AND attempts = 0 THEN $3::bigint + greatest(due_at - created_at, 0) ELSE $3::bigint END,
        fire_at = CASE WHEN fire_at <= $4::bigint OR created_at <= $4::bigint THEN fire_at
            WHEN schedule_id IS NULL THEN $3::bigint + greatest(fire_at - created_at, 0) ELSE $3::bigint END,
        cause = CASE WHEN fire_at > $4::bigint AND created_at > $4::bigint AND cause IN ('fire', 'backfill') THEN 'trigger'
            ELSE cause END,
        deadline = CASE WHEN deadline <= $4::bigint THEN deadline
            WHEN state = 'running' AND started_at > $4::bigint THEN $3::bigint + greatest(deadline - started_at, 0)
            WHEN state = 'dispatched' THEN $3::bigint + greatest(deadline
                - greatest(dispatched_at, pushed_at, taken_at, killed_at), 0)
            ELSE deadline END,
        created_at = CASE WHEN created_at > $4::bigint THEN $3::bigint ELSE created_at END,
        started_at = CASE WHEN started_at > $4::bigint THEN $3::bigint ELSE started_at END,
        dispatched_at = CASE WHEN dispatched_at > $4::bigint THEN $3::bigint ELSE dispatched_at END,
        pushed_at = CASE WHEN pushed_at > $4::bigint THEN $3::bigint ELSE pushed_at END,
        taken_at = CASE WHEN taken_at > $4::bigint THEN $3::bigint ELSE taken_at END,
        killed_at = CASE WHEN killed_at > $4::bigint THEN $3::bigint ELSE killed_at END
    FROM old WHERE id = ANY(ARRAY[old.old_id])
    RETURNING id AS new_id, fire_at AS new_fire_at, old.old_fire_at),
    tries AS (
    UPDATE evertick.attempts a SET fire_at = m.new_fire_at FROM mended m
    WHERE m.new_fire_at <> m.old_fire_at AND a.run = m.new_id AND a.fire_at = m.old_fire_at RETURNING 1),
    lines AS (
    UPDATE evertick.log_chunks l SET fire_at = m.new_fire_at FROM mended m
    WHERE m.new_fire_at <> m.old_fire_at AND l.run = m.new_id AND l.fire_at = m.old_fire_at RETURNING 1),
    keys AS (
    UPDATE evertick.unique_keys u SET fire_at = m.new_fire_at FROM mended m
    WHERE m.new_fire_at <> m.old_fire_at AND u.app = $1 AND u.run = m.new_id RETURNING 1)
SELECT count(*) AS count FROM mended;

-- name: clock.mend_keys
-- For their original period, from now.
UPDATE evertick.unique_keys u
SET until = $3::bigint + greatest(u.until - coalesce(
    (SELECT r.created_at FROM evertick.runs r WHERE r.id = u.run),
    (SELECT h.created_at FROM evertick.history h WHERE h.id = u.run AND h.fire_at = u.fire_at), u.until), 0)
WHERE u.app = $1 AND u.key = ANY($2::text[]);

-- name: clock.mend_messages
-- Like runs.
UPDATE evertick.outbox
SET due_at = CASE WHEN due_at <= $4::bigint OR state <> 'waiting' THEN due_at
        WHEN created_at > $4::bigint AND attempts = 0 THEN $3::bigint + greatest(due_at - created_at, 0) ELSE $3::bigint END,
    forget_at = CASE WHEN settled_at > $4::bigint THEN $3::bigint + greatest(forget_at - settled_at, 0) ELSE forget_at END,
    created_at = CASE WHEN created_at > $4::bigint THEN $3::bigint ELSE created_at END,
    claimed_at = CASE WHEN claimed_at > $4::bigint THEN $3::bigint ELSE claimed_at END,
    settled_at = CASE WHEN settled_at > $4::bigint THEN $3::bigint ELSE settled_at END
WHERE id = ANY($2::uuid[]) AND app IS NOT DISTINCT FROM $1;

-- name: clock.mend_history
-- Durations stay; the end is now at the latest. A run for a moment that has not come is detached from that moment, and
-- its rows move to the partition of its new day.
WITH new AS (
    SELECT h.id AS of, h.fire_at AS old_fire_at, h.created_at AS made,
        CASE WHEN h.finished_at > $4::bigint THEN $3::bigint ELSE h.finished_at END AS ended,
        CASE WHEN h.started_at <= $4::bigint THEN h.started_at
            WHEN h.finished_at > $4::bigint THEN $3::bigint - greatest(h.finished_at - h.started_at, 0)
            WHEN h.started_at IS NULL THEN NULL ELSE h.finished_at END AS began
    FROM evertick.history h WHERE h.id = ANY($2::uuid[])),
    mended AS (
    UPDATE evertick.history h
    SET fire_at = CASE WHEN fire_at > $4::bigint AND new.made > $4::bigint THEN coalesce(new.began, new.ended) ELSE fire_at END,
        cause = CASE WHEN fire_at > $4::bigint AND new.made > $4::bigint AND cause IN ('fire', 'backfill') THEN 'trigger'
            ELSE cause END,
        reason = CASE WHEN fire_at > $4::bigint AND new.made > $4::bigint AND coalesce(reason, 'late') = 'late' THEN 'clock'
            ELSE reason END,
        due_at = CASE WHEN due_at > $4::bigint THEN coalesce(new.began, new.ended) ELSE due_at END,
        created_at = CASE WHEN created_at > $4::bigint THEN coalesce(new.began, new.ended) ELSE created_at END,
        started_at = new.began,
        finished_at = new.ended
    FROM new WHERE h.id = new.of AND h.fire_at = new.old_fire_at AND h.app = $1
    RETURNING h.id AS new_id, h.fire_at AS new_fire_at, new.old_fire_at),
    tries AS (
    UPDATE evertick.attempts a SET fire_at = m.new_fire_at FROM mended m
    WHERE m.new_fire_at <> m.old_fire_at AND a.run = m.new_id AND a.fire_at = m.old_fire_at RETURNING 1),
    lines AS (
    UPDATE evertick.log_chunks l SET fire_at = m.new_fire_at FROM mended m
    WHERE m.new_fire_at <> m.old_fire_at AND l.run = m.new_id AND l.fire_at = m.old_fire_at RETURNING 1),
    keys AS (
    UPDATE evertick.unique_keys u SET fire_at = m.new_fire_at FROM mended m
    WHERE m.new_fire_at <> m.old_fire_at AND u.app = $1 AND u.run = m.new_id RETURNING 1)
SELECT count(*) AS count FROM mended;

-- name: clock.mend_attempts
-- Two arrays in the same order: runs and fences.
UPDATE evertick.attempts a
SET started_at = CASE WHEN a.started_at > $5::bigint THEN $4::bigint ELSE a.started_at END, finished_at = least(a.finished_at, $4::bigint)
FROM unnest($2::uuid[], $3::bigint[]) AS w(run, fence)
WHERE a.app = $1 AND a.run = w.run AND a.fence = w.fence;

-- name: clock.mend_gap
-- Ends at the last of its moments that has come.
UPDATE evertick.gaps SET last_at = $3, count = $4, is_exact = $5, reason = 'clock', recorded_at = $6
WHERE app = $1 AND id = $2 AND recorded_at > $7;

-- name: clock.drop_gap
-- None of its moments has come.
DELETE FROM evertick.gaps WHERE app = $1 AND id = $2 AND recorded_at > $3;

-- name: clock.mend_nodes
-- At most one lease from now; the next heartbeat extends it.
UPDATE evertick.nodes
SET started_at = least(started_at, $3::bigint), beat_at = least(beat_at, $3::bigint), lease_until = least(lease_until, $3::bigint + lease),
    died_at = CASE WHEN died_at > $3::bigint THEN $3::bigint ELSE died_at END
WHERE app = $1 AND id = ANY($2::text[]);

-- name: clock.mend_duties
-- The next act keeps its distance to the last one.
UPDATE evertick.duties
SET next_at = CASE WHEN ticked_at > $4::bigint AND next_at > ticked_at THEN $3::bigint + next_at - ticked_at
        WHEN next_at > $4::bigint AND ticked_at > $4::bigint THEN $3::bigint ELSE next_at END,
    since = least(since, $3::bigint), ticked_at = CASE WHEN ticked_at > $3::bigint THEN $3::bigint ELSE ticked_at END
WHERE app = $1 AND name = ANY($2::text[]);

-- name: clock.mend_events
-- Otherwise the feed would keep them for as long as the clock was ahead.
UPDATE evertick.feed SET at = $3::bigint WHERE app = $1 AND seq = ANY($2::bigint[]);

-- name: clock.mend_schedules
-- Their cursors were repaired before.
UPDATE evertick.schedules SET created_at = $3::bigint WHERE app = $1 AND id = ANY($2::bigint[]);
