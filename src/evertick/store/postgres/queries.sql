-- The statements of the PostgreSQL store. A block is named after the intent that uses it, with a word for its part where
-- an intent has several; what several intents share is named after what it does. A part is put into others where they
-- say `@` and its name. The schema is called `evertick` here; its real name is put in when the file is read.
--
-- Rules for all of them (READ COMMITTED):
--
-- * A statement sees what was committed before it began. One that waits for a row lock then looks at the newest version
--   of that row, but at everything else as of its beginning. So a guard may look at its own row; a guard that looks at
--   another table is preceded by a statement that takes the lock, and stands in a statement of its own after it.
-- * Locks are taken in one order: those of unique keys, the gate of the limits, rows of `due` by schedule, rows of `runs`
--   by id, rows of the outbox. Rows to be locked are looked up before the first lock. A run may come under a limit, or
--   get the mark `frees`, after that look: a transaction that then needs the gate lets go of all and begins again; one
--   that needs a schedule takes it late. A wrong order ends in a deadlock, and begins again, too. Passing over what is locked (SKIP LOCKED) is allowed anywhere, and so is adding a row that no other can know of.
-- * All inserts of runs for a schedule happen under the lock of its row in `due`, and write that row: while its `xmin` (the
--   stamp of what was read) is the same, no run has come. A run that `frees` others ends under
--   that lock, too. A run without that mark can have no run blocked on it: to block on it, one must first set the mark,
--   which waits for the transaction that ends it.
-- * Batches come as arrays. They are joined from the array to the table by a primary key; `state` is left out of such a
--   guard (`started_at IS NOT NULL` says the same of a held run), or a partial index would be taken instead of the key.
--   The join is written `r.id = ANY(ARRAY[t.id])`: that can only be a search for each of them. A plan that was made while
--   the table was empty, and is kept, would otherwise compare each row of the table with each of the batch.
-- * Where the id finds a row of history or of the outbox, the app is compared by IS NOT DISTINCT FROM, which no index can
--   be searched by: while a table is believed to be empty, any index that begins with the app would look as good as that
--   of the ids.
-- * OFFSET 0 in an EXISTS keeps the planner from reading the whole table into a hash, which it thinks of whenever it
--   takes a table for empty.

-- ================================================================================================= parts

-- part: live
-- Live runs of a schedule `d` as overlap looks at them: bit 0: any; bit 1: one is blocked on another run; bit 2: none but
-- parked ones and what is blocked on them. Nearly all have none, and cost one look.
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
-- Arguments of a run `r`: its own, or those of the schedule's version it was recorded under.
coalesce(r.args, (
    SELECT v.args FROM evertick.schedule_versions v
    WHERE v.schedule_id = r.schedule_id AND v.version <= r.version ORDER BY v.version DESC LIMIT 1))

-- part: readable
-- A run `r` that this code can read; newer ones are for newer nodes.
r.format <= 1

-- part: readable_message
-- The same of a message `m`.
m.format <= 1

-- part: live_run
-- A live run `r` as people read it.
r.id::text AS id, r.app, r.schedule_key, r.task, @args AS args, NULL AS schedule_args,
    r.fire_at, r.due_at, r.state, NULL::text AS verdict,
    r.reason, r.parked_for, r.cause, r.attempts, r.losses, r.queue, r.priority, r.labels::text AS labels, r.created_at, r.started_at,
    NULL::bigint AS finished_at, r.expires, r.node, r.fence, NULL::text AS result, r.error, r.progress, r.progress_text,
    r.phases, r.blocked_on::text AS blocked_on, r.limit_key, r.caused_by, r.is_cancel_requested, r.format, r.dispatch,
    r.dispatched_at, r.pushed_at, r.taken_at, r.deadline

-- part: done_run
-- The same of a run `r` in history.
r.id::text AS id, r.app, r.schedule_key, r.task, @args AS args, NULL AS schedule_args,
    r.fire_at, r.due_at, 'done' AS state, r.verdict,
    r.reason, NULL::text AS parked_for, r.cause, r.attempts, r.losses, r.queue, r.priority, r.labels::text AS labels, r.created_at,
    r.started_at, r.finished_at, r.expires, r.node, r.fence, r.result, r.error, r.progress, r.progress_text,
    r.phases, NULL::text AS blocked_on, NULL::text AS limit_key, r.caused_by, r.is_cancel_requested, 1 AS format, r.dispatch

-- part: began
-- When a run is said to have begun: what was dispatched, when a worker took it, as far as that is known.
coalesce(started_at, taken_at, pushed_at, dispatched_at)

-- part: in_no_hands
-- Of a run that was dispatched, and is not any more.
dispatch = NULL, dispatched_at = NULL, pushed_at = NULL, taken_at = NULL, killed_at = NULL

-- part: claimed_run
-- A run `r` as its owner needs it.
r.id::text AS id, r.task, @args AS args, r.fire_at, r.due_at, r.attempts, r.losses, r.schedule_id, r.schedule_key,
    r.cause, r.queue, r.priority, r.labels::text AS labels, r.traceparent, r.expires, r.limit_key, r.unique_until

-- part: feed_epoch
-- The epoch of the feed of an app; NULL for one without. Not correlated, so asked once per statement, and a filter
-- `IS NOT NULL` on it keeps what follows from being looked at.
(SELECT f.epoch FROM evertick.feeds f WHERE f.app = $1)

-- ================================================================================================= shared

-- name: now
-- The store's time.
SELECT evertick.now_us() AS now;

-- name: schedule.lock
-- The first statement of whatever is guarded by more than the row itself. In order, so that no two wait crosswise.
SELECT count(*) AS count FROM (
    SELECT FROM evertick.due WHERE schedule_id = ANY($1::bigint[]) ORDER BY schedule_id FOR UPDATE) l;

-- name: schedule.keys
-- How people call them.
SELECT key FROM evertick.schedules WHERE app = $1 AND id = ANY($2::bigint[]) ORDER BY key;

-- name: schedule.live_runs
-- All live runs of schedules whose lock is held: none can come, and none can leave its state until the commit.
SELECT id::text AS id, state FROM evertick.runs WHERE schedule_id = ANY($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: change_schedules.give_up_untaken
-- Of live runs of schedules that are removed, and whose locks are held: what lies in a queue, and no worker has, goes with
-- what waits here.
UPDATE evertick.runs
SET is_cancel_requested = true, cancel_reason = $2, deadline = (SELECT evertick.now_us())
WHERE id = ANY($1::uuid[]) AND dispatched_at IS NOT NULL AND taken_at IS NULL AND NOT is_cancel_requested;

-- name: schedule.mark_frees
-- Their end concerns others from now on. Waits for a transaction that is ending one of them.
UPDATE evertick.runs SET frees = true WHERE id = ANY(ARRAY(
    SELECT id FROM evertick.runs WHERE schedule_id = ANY($1::bigint[]) AND NOT frees ORDER BY id FOR UPDATE));

-- name: schedule.count_from_end
-- The cursor of a rule that counts from the end of a run: none while one is live, else that much after now. Under the
-- lock, in a statement of its own: of two last runs that end at once, the later one sees that the other has ended.
UPDATE evertick.due d SET (fire_at, at) = (
    SELECT next, next FROM (SELECT CASE WHEN NOT EXISTS (
        SELECT FROM evertick.runs r WHERE r.schedule_id = d.schedule_id OFFSET 0)
        THEN (SELECT evertick.now_us()) + d.after_end END AS next) n)
WHERE d.schedule_id = ANY($1::bigint[]) AND d.after_end IS NOT NULL
    AND EXISTS (SELECT FROM evertick.schedules s WHERE s.id = d.schedule_id AND s.pause IS NULL);

-- name: schedule.has_limited
-- Whether the end of a live run of these schedules may make room under a limit.
SELECT EXISTS (
    SELECT FROM evertick.runs WHERE schedule_id = ANY($1::bigint[]) AND limit_key IS NOT NULL) AS has_limited;

-- part: known
-- Which of the new runs ($4) are in the ledger already: live or done, as seen at one and the same moment, so that a run
-- on its way into history cannot slip by. $2 and $3 bound the moments that history is asked for, and with them the
-- partitions that are opened. Ids are asked for all together: new ones are all at the right end of the indexes.
known AS MATERIALIZED (
    SELECT l.id FROM evertick.runs l WHERE l.id = ANY($4::uuid[])
    UNION ALL
    SELECT h.id FROM evertick.history h WHERE h.id = ANY($4::uuid[]) AND h.fire_at BETWEEN $2 AND $3)

-- part: insert_new
-- Runs, unless their id or their nominal moment is in the ledger already. A blocked run waits for the last in line of its
-- schedule, if any is live: for the newest that no other waits for, or two would start at its end. Those to be claimed
-- are running on the node at once, under one fence that is drawn when the locks are held, unless the node is dead.
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
-- The same of runs that no schedule has, and that are not claimed as they are inserted. Nearly all that is enqueued, often
-- one at a time: then most of the price is what a statement could have to do, and not what it does.
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

-- part: tell_new
-- The event of them.
    RETURNING id, schedule_key, task, fire_at, due_at, cause, reason, node, fence),
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT now FROM clock), 'run.recorded', json_agg(json_build_array(i.id, i.schedule_key,
        i.task, i.fire_at, i.due_at, i.cause, NULL, i.reason, 0, i.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM inserted) i
    WHERE @feed_epoch IS NOT NULL GROUP BY i.part)

-- part: answer_new
-- The ids only if some are missing.
SELECT (SELECT now FROM clock) AS now, max(fence) AS fence, count(*) > count(fence) AS has_waiting,
    CASE WHEN count(*) < cardinality($4) THEN coalesce(array_agg(id::text), '{}') END AS ids
FROM inserted

-- name: insert_runs
-- Fails if another is inserting one of them at this very moment.
@insert_new @tell_new @answer_new;

-- name: insert_runs.carefully
-- Then it is left out. That costs a fifth of an insertion, and a tenth of its log.
@insert_new ON CONFLICT DO NOTHING @tell_new @answer_new;

-- name: insert_enqueued
-- The two of them for runs that are enqueued.
@insert_enqueued @tell_new @answer_new;

-- name: insert_enqueued.carefully
-- Those that another is inserting at this very moment are left out.
@insert_enqueued ON CONFLICT DO NOTHING @tell_new @answer_new;

-- name: insert_one
-- The same of one run without a unique key, which is most of what is enqueued: without arrays, and so without what a
-- statement has to set up for each of them, and for counting. Wakes others with its commit, if it has words for it ($19
-- and $20). Fails if another is inserting it at this very moment.
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
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT now FROM clock), 'run.recorded', json_build_array(json_build_array(i.id, NULL,
        i.task, i.fire_at, i.due_at, i.cause, NULL, i.reason, 0, NULL))::text
    FROM inserted i WHERE @feed_epoch IS NOT NULL)
SELECT (SELECT now FROM clock) AS now, EXISTS (SELECT FROM inserted) AS is_new,
    CASE WHEN $19::text IS NOT NULL THEN pg_notify($19, $20::text) END AS woken;

-- name: run.to_lock
-- The locks that come before these runs: the gate, if one of them has a key of a limit, and the schedules of those whose
-- end frees others.
SELECT coalesce(bool_or(limit_key IS NOT NULL), false) AS has_limited,
    coalesce(array_agg(DISTINCT schedule_id) FILTER (WHERE frees AND schedule_id IS NOT NULL), '{}') AS schedules
FROM evertick.runs WHERE id = ANY($1::uuid[]);

-- name: run.lock
-- Runs as they are now, in order, and as they stay until the commit.
SELECT id::text AS id, state, schedule_id, node, fence, attempts, is_cancel_requested, cancel_reason, frees, limit_key,
    @feed_epoch IS NOT NULL AS has_feed
FROM evertick.runs WHERE app = $1 AND id = ANY($2::uuid[]) ORDER BY id FOR UPDATE;

-- name: run.leave_line
-- Before blocked runs end: the run behind one in line waits for what it has waited for; where several leave that
-- stand behind each other, for what the first of them has waited for. Under the locks of their schedules.
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
-- How live runs end by the store's own hand, into history. An error of an earlier try stays for people to see. Second
-- line of defence: a moment that history has already is not written twice.
WITH gone AS (
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
    FROM gone ON CONFLICT DO NOTHING RETURNING id),
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.finished', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, g.verdict, coalesce(g.given_reason, g.reason), g.attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM gone) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)
SELECT id::text AS id, schedule_id, frees, CASE WHEN state <> 'blocked' THEN limit_key END AS limit_key,
    id IN (SELECT id FROM kept) AS is_kept
FROM gone;

-- name: run.unblock
-- A run blocked on one that has ended is due now, unless its own jitter says later. After the end, in a statement
-- of its own: it must see what was blocked on them up to the moment when they were locked.
UPDATE evertick.runs SET state = 'waiting', blocked_on = NULL, due_at = greatest(due_at, (SELECT evertick.now_us()))
WHERE state = 'blocked' AND app = $1 AND schedule_id = ANY($2::bigint[]) AND blocked_on = ANY($3::uuid[]);

-- ================================================================================================= schedules

-- name: due_schedules
-- Longest due first, from a place in this order on; columns as arrays, which cost much less to read than rows. How long
-- the tick may sleep after them.
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
-- Definition and cursor, by id and as people name them; a newer format is left to newer nodes.
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = ANY(ARRAY[s.id])
WHERE s.app = $1 AND s.id = ANY($2::bigint[]) AND s.format <= $4
UNION ALL
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = ANY(ARRAY[s.id])
WHERE s.app = $1 AND s.key = ANY($3::text[]) AND s.id <> ALL($2::bigint[]) AND s.format <= $4;

-- name: declared_schedules
-- All that code declares or declared.
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = s.id
WHERE s.app = $1 AND s.declared IS NOT NULL AND s.format <= $2
ORDER BY s.key;

-- name: fingerprints
-- Once per start of a node: few values, so a scan of the narrow table is what it takes.
SELECT fingerprint, min(schedule_id) AS id FROM evertick.due
WHERE app = $1 AND fingerprint <> '' AND format <= $2 GROUP BY fingerprint;

-- name: computed_with
-- Schedules whose cursor was computed with one fingerprint, a page at a time.
SELECT @stored
FROM evertick.due d JOIN evertick.schedules s ON s.id = ANY(ARRAY[d.schedule_id])
WHERE d.app = $1 AND d.fingerprint = $2 AND d.schedule_id > $3 AND d.format <= $4
ORDER BY d.schedule_id LIMIT $5;

-- name: record_fires.advance
-- The guard: version, cursor and live runs must be what the plan was made from. Where a plan asks for live runs, the
-- lock of its row is held already: this statement began after it, and sees every run that was recorded before. What is the
-- same for all comes once. Answers the ids only if some are missing.
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
-- Nearly all plans: the cursor forward and one run of its moment, with no look at other runs. The guard is the
-- stamp: recording a run of a schedule writes its row, so while that is the very row which was read, nothing is live
-- that was not. Two at once: the later one waits for the row, and then finds another. What is the same for all comes once,
-- what is as usual not at all. Nothing is written if the ledger has one of the moments already: a live one by the index
-- of moments; one in history has no id here, which no row may be without. Answers the schedules only if some are missing.
-- $1 is the app, $2 who claims, $4 and $5 bound the moments. All others are the columns of p, as `fires.py` makes them:
-- with a value for each plan; with one for all, then the others of p are NULL, and its first element is read beside p;
-- or empty where all are as usual, then p is NULL, and what is usual stands beside it.
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
@tell_new
SELECT (SELECT now FROM clock) AS now, max(fence) AS fence, count(*) > count(fence) AS has_waiting,
    CASE WHEN count(*) < cardinality($6) THEN (SELECT coalesce(array_agg(schedule_id), '{}') FROM moved) END AS taken
FROM inserted;

-- name: record_fires.decide
-- Decisions about single moments, as far as it is still to come; NULL for nothing.
UPDATE evertick.schedules s SET occurrences = n.occurrences
FROM unnest($1::bigint[], $2::text[]) AS n(id, occurrences) WHERE s.id = ANY(ARRAY[n.id]);

-- name: record_fires.fail
-- A plan that failed moves nothing but the next look. The guard is the row itself.
UPDATE evertick.due d SET at = p.next_at, failures = d.failures + 1, error = p.error
FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
    AS p(schedule_id, version, fire_at, at, next_at, error)
WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]) AND d.app = $1 AND d.version = p.version
    AND d.fire_at IS NOT DISTINCT FROM p.fire_at AND d.at IS NOT DISTINCT FROM p.at
RETURNING d.schedule_id;

-- name: record_fires.count_back
-- A fire that turned out to be recorded already was counted too early.
UPDATE evertick.due d SET fires = d.fires - p.count
FROM unnest($1::bigint[], $2::bigint[]) AS p(schedule_id, count) WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]);

-- name: record_fires.gaps
-- Moments that get no run, and their events.
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
-- A trigger leaves the cursor where it is, so sent again it passes the guard; it must not replace its own run. $2 and $3
-- bound the days that are opened.
SELECT id::text AS id FROM evertick.runs WHERE id = ANY($1::uuid[])
UNION ALL SELECT id::text AS id FROM evertick.history WHERE id = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3;

-- name: record_fires.lock_early
-- Runs that were made before their moment, as long as they are not at work, and no try of them was judged or lost.
-- A claim of one is waited for; once locked, none can begin.
SELECT r.id::text AS id FROM unnest($2::uuid[], $3::bigint[]) AS w(id, schedule_id)
JOIN evertick.runs r ON r.id = ANY(ARRAY[w.id]) AND r.schedule_id = w.schedule_id
WHERE r.app = $1 AND r.cause = 'fire' AND r.state IN ('waiting', 'blocked', 'parked') AND r.attempts = 0 AND r.losses = 0
ORDER BY w.id FOR UPDATE OF r;

-- name: record_fires.give_moments_back
-- They stand for their moments no more.
UPDATE evertick.runs SET cause = 'trigger' WHERE id = ANY($1::uuid[]);

-- name: record_fires.give_keys_back
-- The run of such a moment has the same key for a period. json, not jsonb: a definition may hold what that refuses.
DELETE FROM evertick.unique_keys u
USING unnest($2::uuid[], $3::bigint[]) AS w(run, schedule_id) JOIN evertick.schedules s ON s.id = w.schedule_id
WHERE u.app = $1 AND u.key = s.definition::json ->> 'unique' AND u.run = w.run;

-- name: record_fires.ask_to_cancel
-- Overlap "replace": its owner learns of it with its next beat. A dispatched run is looked at.
UPDATE evertick.runs SET is_cancel_requested = true, cancel_reason = $2,
    deadline = CASE WHEN dispatched_at IS NULL THEN deadline ELSE (SELECT evertick.now_us()) END
WHERE id = ANY($1::uuid[]) AND NOT is_cancel_requested;

-- name: change_schedules.add
-- A key that is taken is not an error: the caller reads and tries again.
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
-- The guard names an id, people a key: both must mean the same schedule.
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
-- The tick filters by format without reading definitions. Earlier failures do not count for the new one.
UPDATE evertick.due d SET format = n.format, counts_from = d.version
FROM unnest($1::bigint[], $2::int[]) AS n(id, format) WHERE d.schedule_id = ANY(ARRAY[n.id]);

-- name: change_schedules.keep_version
-- Runs refer to the definition they were recorded under.
INSERT INTO evertick.schedule_versions (app, key, schedule_id, version, definition, args)
SELECT $1, n.key, n.id, d.version, n.definition, n.args
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) AS n(id, key, definition, args)
JOIN evertick.due d ON d.schedule_id = ANY(ARRAY[n.id]) ON CONFLICT DO NOTHING;

-- name: change_schedules.declare
-- Which code they are written from.
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
-- History and old versions stay. No cursor, no fires.
WITH gone AS (DELETE FROM evertick.due WHERE schedule_id = ANY($1::bigint[]))
DELETE FROM evertick.schedules WHERE id = ANY($1::bigint[]);

-- name: schedules
-- For people, by key; filters that are NULL do not filter.
SELECT @stored
FROM evertick.schedules s JOIN evertick.due d ON d.schedule_id = s.id
WHERE s.app = $1 AND s.key > $2 AND s.format <= $3 AND ($4::text[] IS NULL OR s.key = ANY($4::text[]))
    AND ($5::bool IS NULL OR (s.pause IS NOT NULL) = $5) AND ($6::text IS NULL OR s.labels @> $6::jsonb)
ORDER BY s.key LIMIT $7;

-- name: schedules.by_due
-- The same in the order of the tick, from its index: who is next costs no look at the others.
SELECT @stored
FROM evertick.due d JOIN evertick.schedules s ON s.id = d.schedule_id
WHERE d.app = $1 AND d.at IS NOT NULL AND s.key > $2 AND s.format <= $3
    AND ($4::text[] IS NULL OR s.key = ANY($4::text[]))
    AND ($5::bool IS NULL OR (s.pause IS NOT NULL) = $5) AND ($6::text IS NULL OR s.labels @> $6::jsonb)
ORDER BY d.at LIMIT $7;

-- name: schedules.last_runs
-- The newest moment of each that became a run, live or done.
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
-- Finished runs by verdict, as far as history is kept.
SELECT schedule_id, verdict, count(*) AS count FROM evertick.history
WHERE schedule_id = ANY($1::bigint[]) GROUP BY schedule_id, verdict;

-- name: failing
-- Of schedules that pause themselves, after a batch with failed verdicts or, with NULL, all of the app, those whose newest
-- fires that count have all failed, with the last of them. The others cost nothing: from the partial index.
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
-- A scan, for people: the rule ends with the name, or an option follows; the blackout is the name.
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
-- One at a time for each name: the second must see what the first has put.
SELECT pg_advisory_xact_lock(hashtextextended('evertick.calendars' || $1::text || chr(10) || $2::text, 0));

-- name: put_calendar
-- The same content again changes nothing. A version that comes back becomes the newest again.
WITH newest AS (
    SELECT content FROM evertick.calendars WHERE app = $1 AND name = $2 ORDER BY id DESC LIMIT 1)
INSERT INTO evertick.calendars (app, name, version, content, put_at)
SELECT $1, $2, $3, $4, (SELECT evertick.now_us())
WHERE NOT EXISTS (SELECT FROM newest WHERE content = $4);

-- name: put_calendar.forget
-- So that it can come back.
DELETE FROM evertick.calendars WHERE app = $1 AND name = $2 AND version = $3
    AND $4 IS DISTINCT FROM (SELECT content FROM evertick.calendars WHERE app = $1 AND name = $2 ORDER BY id DESC LIMIT 1);

-- ================================================================================================= runs

-- part: period_holder
-- The run that has the key of `w` for a period, live or done. One that the ledger no longer knows could not be answered.
(SELECT u.run FROM evertick.unique_keys u
    WHERE u.app = $1 AND u.key = w.unique_key AND u.until > (SELECT evertick.now_us())
        AND (EXISTS (SELECT FROM evertick.runs r WHERE r.app = $1 AND r.id = u.run OFFSET 0)
            OR EXISTS (SELECT FROM evertick.history h
                WHERE h.id = u.run AND h.fire_at = u.fire_at AND h.app IS NOT DISTINCT FROM $1 OFFSET 0)))

-- name: unique.lock
-- A transaction that wants a unique key waits for one that is about to take it. A few hundred locks stand for all keys:
-- a batch of thousands must not use up the server's room for locks.
SELECT pg_advisory_xact_lock(lock) FROM (
    SELECT DISTINCT hashtextextended('evertick.unique' || $1::text, hashtext(w.key) & 255) AS lock
    FROM unnest($2::text[]) AS w(key) ORDER BY lock) l;

-- name: unique.holders
-- Which of these keys are taken, and by whom.
SELECT w.unique_key AS key, coalesce(
    (SELECT r.id FROM evertick.runs r WHERE r.app = $1 AND r.unique_key = w.unique_key), @period_holder)::text AS id
FROM unnest($2::text[]) AS w(unique_key);

-- name: unique.keep
-- For a period from the insertion, by the store's time; the period of an earlier run is over. After the insertion.
INSERT INTO evertick.unique_keys (app, key, run, fire_at, until)
SELECT $1, w.key, r.id, r.fire_at, (SELECT evertick.now_us()) + w.period
FROM unnest($2::text[], $3::uuid[], $4::bigint[]) AS w(key, run, period)
JOIN evertick.runs r ON r.id = ANY(ARRAY[w.run])
ON CONFLICT (app, key) DO UPDATE SET run = excluded.run, fire_at = excluded.fire_at, until = excluded.until;

-- name: enqueue.known
-- The runs that are there instead of those not inserted: the same sent twice, or the one with the unique key or moment.
-- $7 and $8 bound the days that are opened, as for the insertion.
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
-- The claiming node, if it lives.
claimant AS MATERIALIZED (SELECT k.id FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)

-- part: levels
-- The priorities in use in queues, from the highest down, by one seek each: future runs of a higher one are never walked
-- over. None without a claimant.
levels(priority) AS (
    SELECT 9223372036854775807::bigint FROM claimant
    UNION ALL
    SELECT (SELECT max(below.priority) FROM unnest($3::text[]) AS q(queue) CROSS JOIN LATERAL (
        SELECT r.priority FROM evertick.runs r
        WHERE r.state = 'waiting' AND r.app = $1 AND r.queue = q.queue AND r.priority < levels.priority
        ORDER BY r.priority DESC LIMIT 1) below)
    FROM levels WHERE levels.priority IS NOT NULL)

-- part: picked
-- Due runs of these queues and tasks, highest priority first, then longest due; those that others are at are skipped.
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
-- When the next waiting run of these queues and tasks is due, those left out that are being taken.
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
-- All in one statement: what it takes is locked when the fence is drawn, so a greater fence is a later claim of a run.
-- The progress of an earlier attempt is over. Always answers a row; the runs in it as arrays, which cost a
-- third of rows to read. When the next run is due is not looked up for who has taken all he wanted: there may be more. A
-- node that has to look again at what limits hold back gets nothing by it: it claims in steps.
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
told AS (
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
-- The same in steps, for nodes that know limited tasks: only pick and lock.
WITH RECURSIVE clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
@claimant,
@levels,
@picked
SELECT @claimed_run FROM evertick.runs r WHERE r.id = ANY(ARRAY(SELECT id FROM picked))
ORDER BY r.priority DESC, r.due_at;

-- name: claim.begin
-- All that a claim in steps has to know first, in one statement: all that wait at the gate wait for each of its steps.
-- Takes the keys of limits whose time has come, which is forgotten by that; tells whether the node has to look again at
-- what limits hold back, and after which key.
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
-- Those that must go before others can be picked.
WITH RECURSIVE clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
@claimant,
@levels
SELECT @too_old AS too_old;

-- name: claim.next
-- When to come again: for what waits, and for what a limit holds back.
WITH RECURSIVE @claimant,
@levels,
picked AS (SELECT NULL::uuid AS id WHERE false)
SELECT @next_due AS due_at, (SELECT min(free_at) FROM evertick.limits WHERE app = $1) AS free_at;

-- name: claim.expire
-- Of runs that looked too old, those that are so still, now that they are locked.
SELECT id::text AS id FROM evertick.runs
WHERE id = ANY($2::uuid[]) AND app = $1 AND state = 'waiting' AND due_at + expires < (SELECT evertick.now_us())
ORDER BY id FOR UPDATE;

-- name: take
-- Start of an attempt for runs that are locked already, under one fence and at one time: those given, or new ones.
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
-- The columns of a run that has ended.
id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority, args, labels, expires,
    caused_by, traceparent, losses, node, fence, created_at, started_at, is_cancel_requested, cancel_reason, progress,
    progress_text

-- part: told_finished
-- The feed's event of runs that have `gone`.
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.finished', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, g.verdict, g.shown_reason, g.given_attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM gone) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)

-- name: finish.alike
-- Nearly all: runs of one claim whose ends are alike and concern no other. Guarded by the claim, into history in the
-- same statement. The reason they were recorded with (late) holds where the outcome brings none. A moment that history
-- has already makes it fail, which is cheaper than asking for each of them; `finish.done` then leaves it out. Answers
-- the ids only if some are missing.
WITH gone AS (
    DELETE FROM evertick.runs r
    WHERE r.id = ANY($3::uuid[]) AND r.fence = $4 AND r.node = $2 AND r.app = $1 AND r.started_at IS NOT NULL
        AND NOT r.frees AND r.limit_key IS NULL
    RETURNING @history_row, $5::text AS verdict, $6::int AS given_attempts,
        coalesce($7::text, CASE WHEN $5 = 'cancelled' THEN cancel_reason END, reason) AS shown_reason,
        coalesce($10::text, phases) AS shown_phases),
kept AS (
    INSERT INTO evertick.history (@history_row, verdict, attempts, reason, phases, error, result, finished_at)
    SELECT *, $8::text, $9::text, (SELECT evertick.now_us()) FROM gone),
@told_finished
SELECT count(*) AS count, CASE WHEN count(*) < cardinality($3) THEN array_agg(id::text) END AS ids FROM gone;

-- name: finish.done
-- The same of runs that differ in what they say. With $3 false it leaves those alone whose end concerns others. Second
-- line of defence: a moment that history has already is not written twice.
WITH gone AS (
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
    SELECT *, (SELECT evertick.now_us()) FROM gone ON CONFLICT DO NOTHING RETURNING id),
@told_finished
SELECT array_agg(id::text) AS ids, (SELECT count(*) FROM kept) AS kept FROM gone;

-- name: finish.keep_attempts
-- Earlier tries, for people; also how a repeated answer is recognised after the next claim.
INSERT INTO evertick.attempts (app, run, fire_at, number, fence, node, started_at, finished_at, error, reason,
    phases)
SELECT r.app, r.id, r.fire_at, t.number, r.fence, r.node, @began, (SELECT evertick.now_us()), t.error, t.reason,
    coalesce(t.phases, r.phases)
FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[]) AS t(id, number, error, reason, phases)
JOIN evertick.runs r ON r.id = ANY(ARRAY[t.id]) ON CONFLICT DO NOTHING;

-- name: keep_cut_off
-- Tries that were cut off and spend nothing, if they had phases: those given, or those of their notes.
INSERT INTO evertick.attempts (app, run, fire_at, number, fence, node, started_at, finished_at, reason, phases, is_lost)
SELECT r.app, r.id, r.fire_at, r.attempts + 1, r.fence, r.node, r.started_at, (SELECT evertick.now_us()), t.reason,
    coalesce(t.phases, r.phases), $4
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS t(id, reason, phases)
JOIN evertick.runs r ON r.id = ANY(ARRAY[t.id])
WHERE r.fence IS NOT NULL AND coalesce(t.phases, r.phases) IS NOT NULL ON CONFLICT DO NOTHING;

-- name: finish.retry
-- The same rows, due later. Their (node, fence) stay until the next claim; a limit must be passed again by that.
UPDATE evertick.runs r
SET state = 'waiting', due_at = (SELECT evertick.now_us()) + t.delay, attempts = t.attempts, error = t.error,
    phases = coalesce(t.phases, r.phases), started_at = NULL, deadline = NULL, limit_key = NULL, @in_no_hands
FROM unnest($1::uuid[], $2::bigint[], $3::int[], $4::text[], $5::text[]) AS t(id, delay, attempts, error, phases)
WHERE r.id = ANY(ARRAY[t.id]);

-- name: finish.release
-- Nothing is spent. They had started in time, so the time in which they may start begins anew.
UPDATE evertick.runs r
SET state = 'waiting', due_at = (SELECT evertick.now_us()) + t.delay, phases = coalesce(t.phases, r.phases),
    started_at = NULL, deadline = NULL, limit_key = NULL, @in_no_hands
FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS t(id, delay, phases) WHERE r.id = ANY(ARRAY[t.id]);

-- part: dispatched
-- The dispatch of a run. It belongs to no node any more; (node, fence) stay, for an answer that
-- is repeated and for those who report. Its limit is not left. There is no time to look at it before its message is
-- delivered.
state = 'dispatched', dispatch = t.dispatch, dispatched_at = (SELECT evertick.now_us()), pushed_at = NULL, taken_at = NULL,
    killed_at = NULL, started_at = NULL, deadline = NULL

-- name: finish.dispatch_with_messages
-- Nearly all: runs of one node whose cancel was not asked for, each with the message that dispatches it. Guarded by the
-- claim, into the outbox in the same statement. Answers which they were.
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
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.dispatched', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, NULL, g.shown_reason, g.attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM dispatched) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)
SELECT coalesce(array_agg(id::text), '{}') AS ids FROM dispatched;

-- name: finish.dispatch
-- Those that are locked; their messages follow.
UPDATE evertick.runs r SET @dispatched
FROM unnest($1::uuid[], $2::text[]) AS t(id, dispatch) WHERE r.id = ANY(ARRAY[t.id]);

-- name: finish.park
-- They leave the claim index until a node comes that can run them. The reason they were recorded with is not forgotten.
UPDATE evertick.runs r
SET state = 'parked', parked_for = t.reason, error = coalesce(t.error, r.error), task_hash = t.task_hash,
    started_at = NULL, deadline = NULL, limit_key = NULL
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS t(id, reason, error, task_hash)
WHERE r.id = ANY(ARRAY[t.id]);

-- name: finish.answered_before
-- Was this very claim the one that ended it, put it back, or spent an attempt on it? Asked of the days around its making
-- first ($5 to $6).
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
-- Runs that a node holds by the store's word.
SELECT id::text AS id, fence FROM evertick.runs WHERE state = 'running' AND app = $1 AND node = $2 ORDER BY id;

-- name: cancel.done
-- Of runs that are not live, those that were. Asked of the days around their making first ($3 to $4).
SELECT id::text AS id FROM evertick.history
WHERE id = ANY($2::uuid[]) AND fire_at BETWEEN $3 AND $4 AND app IS NOT DISTINCT FROM $1;

-- name: cancel.ask
-- The first reason stays. A dispatched run is looked at.
UPDATE evertick.runs
SET cancel_reason = CASE WHEN is_cancel_requested THEN cancel_reason ELSE $2 END, is_cancel_requested = true,
    deadline = CASE WHEN dispatched_at IS NULL OR is_cancel_requested THEN deadline ELSE (SELECT evertick.now_us()) END
WHERE id = ANY($1::uuid[]);

-- name: note.hold
-- Which of these runs are the node's, and stay so until the commit.
SELECT r.id::text AS id, r.fire_at FROM unnest($3::uuid[], $4::bigint[]) AS t(id, fence)
JOIN evertick.runs r ON r.id = ANY(ARRAY[t.id]) AND r.fence = t.fence
WHERE r.app = $1 AND r.node = $2 AND r.started_at IS NOT NULL ORDER BY t.id FOR SHARE OF r;

-- name: note.own_ends
-- A job that has ended its own run may have lines left to say; no other claim's word makes a run of this claim succeed.
-- Asked of the days around its making first ($5 to $6).
SELECT h.id::text AS id, h.fire_at FROM unnest($3::uuid[], $4::bigint[]) AS t(id, fence)
JOIN evertick.history h ON h.id = ANY(ARRAY[t.id]) AND h.fence = t.fence
WHERE h.node = $2 AND h.verdict = 'succeeded' AND h.fire_at BETWEEN $5 AND $6 AND h.app IS NOT DISTINCT FROM $1;

-- name: note.progress
-- The latest wins.
UPDATE evertick.runs r
SET progress = coalesce(t.progress, r.progress), progress_text = coalesce(t.progress_text, r.progress_text),
    phases = coalesce(t.phases, r.phases)
FROM unnest($1::uuid[], $2::float8[], $3::text[], $4::text[]) AS t(id, progress, progress_text, phases) WHERE r.id = ANY(ARRAY[t.id]);

-- name: note.lines
-- A note that is sent again replaces itself; the longer one has all the lines of the shorter.
INSERT INTO evertick.log_chunks AS l (app, run, fence, seq, fire_at, count, lines)
SELECT $1, t.* FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::text[])
    AS t(run, fence, seq, fire_at, count, lines)
ON CONFLICT (run, fence, seq, fire_at) DO UPDATE SET count = excluded.count, lines = excluded.lines
WHERE excluded.count > l.count;

-- name: runs.live
-- Read by people; the filters are put in by `runs.py`.
SELECT @live_run FROM evertick.runs r WHERE r.app = $1

-- name: runs.done
-- The same of history.
SELECT @done_run FROM evertick.history r WHERE r.app = $1

-- name: runs.reruns
-- All reruns, listed once per question: a filter of `runs.py`.
SELECT l.caused_by FROM evertick.runs l WHERE l.app = $1 AND l.cause = 'rerun' AND l.caused_by IS NOT NULL
UNION ALL
SELECT h.caused_by FROM evertick.history h WHERE h.app = $1 AND h.cause = 'rerun' AND h.caused_by IS NOT NULL

-- name: runs.schedules_of_key
-- A key that was removed and added again names several schedules.
SELECT DISTINCT schedule_id FROM evertick.schedule_versions WHERE app = $1 AND key = $2;

-- name: recorded_moments
-- By the index that keeps a moment from being recorded twice.
SELECT fire_at FROM evertick.runs
WHERE schedule_id = $1 AND fire_at BETWEEN $2 AND $3 AND cause IN ('fire', 'backfill', 'every-node') AND app = $5
UNION
SELECT fire_at FROM evertick.history
WHERE schedule_id = $1 AND fire_at BETWEEN $2 AND $3 AND cause IN ('fire', 'backfill', 'every-node') AND app = $5
ORDER BY fire_at LIMIT $4;

-- name: gaps
-- Gaps that touch a stretch of time, newest first.
SELECT * FROM evertick.gaps
WHERE app = $1 AND last_at >= $2 AND first_at <= $3 AND ($4::text[] IS NULL OR verdict = ANY($4::text[]))
ORDER BY last_at DESC, id DESC LIMIT $5;

-- name: gaps.of_key
-- The same of one schedule.
SELECT * FROM evertick.gaps
WHERE app = $1 AND last_at >= $2 AND first_at <= $3 AND ($4::text[] IS NULL OR verdict = ANY($4::text[]))
    AND schedule_key = $6
ORDER BY last_at DESC, id DESC LIMIT $5;

-- name: attempts
-- Earlier tries in order.
SELECT number, fence, node, started_at, finished_at, error, reason, phases FROM evertick.attempts
WHERE app = $1 AND run = $2 ORDER BY fence;

-- name: log
-- Chunks in the order of the attempts.
SELECT fence, seq, count, lines FROM evertick.log_chunks WHERE app = $1 AND run = $2 ORDER BY fence, seq;

-- ================================================================================================= within

-- name: within.store
-- Which store a connection leads to: a copy of it is in another database. And how much of what others commit its
-- transaction sees.
SELECT store_id, (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()) AS database,
    current_setting('transaction_isolation') AS isolation
FROM evertick.meta;

-- name: within.begin
-- The name of the transaction of a job, which it gets by this, and who works on it; a pooler would tell another number.
-- The server's own limits ($1, in milliseconds) are those of this transaction, not those of the store's intents.
SELECT pg_current_xact_id()::text AS name, pg_backend_pid() AS backend,
    set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true);

-- name: within.transaction
-- The name of the open transaction.
SELECT pg_current_xact_id()::text AS name;

-- name: within.terminate
-- End the session of a transaction that took too long, unless that session has another user by now.
SELECT pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_xid = $2::text::xid8::xid;

-- name: within.held
-- Whether a claim holds its run; not locked, for no other is to wait for a job.
SELECT FROM evertick.runs WHERE app = $1 AND node = $2 AND id = $3 AND fence = $4 AND started_at IS NOT NULL;

-- ================================================================================================= limits

-- name: limits.gate
-- One at a time of an app that claims under a limit or makes room for others; see limits.py.
SELECT pg_advisory_xact_lock(hashtextextended('evertick.limits' || $1::text, 0));

-- name: limits.gate_of_ours
-- The same in a transaction of our own, which loses it when its node falls silent: all others stand and wait.
SELECT pg_advisory_xact_lock(hashtextextended('evertick.limits' || $1::text, 0)),
    set_config('idle_in_transaction_session_timeout', $2, true);

-- name: limits.running
-- The count against a concurrency: a few entries of a partial index for each key.
SELECT w.key, (SELECT count(*) FROM evertick.runs r
    WHERE r.state IN ('running', 'dispatched') AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key) AS count
FROM unnest($2::text[]) AS w(key);

-- name: limits.hold_back
-- Out of the claim index until its key is free.
UPDATE evertick.runs r SET state = 'blocked', limit_key = w.key
FROM unnest($1::uuid[], $2::text[]) AS w(id, key) WHERE r.id = ANY(ARRAY[w.id]);

-- name: limits.let_through
-- The best of each lane of the keys wait again; the key stays as the mark of it. From lane to lane by a seek each.
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
-- The next keys that hold something back, by a seek each.
WITH RECURSIVE keys(key) AS (
    SELECT (SELECT min(r.limit_key) FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key > $2)
    UNION ALL
    SELECT (SELECT min(r.limit_key) FROM evertick.runs r
        WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key > k.key)
    FROM keys k WHERE k.key IS NOT NULL)
SELECT key FROM keys WHERE key IS NOT NULL LIMIT $3;

-- name: limits.stuck
-- Of these keys, those under which nothing runs and that have no time to come. A time that was set in the future says
-- nothing any more: the clock was put back.
SELECT w.key FROM unnest($2::text[]) AS w(key)
WHERE NOT EXISTS (SELECT FROM evertick.runs r
        WHERE r.state IN ('running', 'dispatched') AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key
        OFFSET 0)
    AND NOT EXISTS (SELECT FROM evertick.limits l
        WHERE l.app = $1 AND l.key = w.key AND l.free_at > (SELECT evertick.now_us())
            AND l.set_at <= (SELECT evertick.now_us()) OFFSET 0);

-- name: limits.holding
-- Of these keys, those that hold something back.
SELECT w.key FROM unnest($2::text[]) AS w(key) WHERE EXISTS (
    SELECT FROM evertick.runs r
    WHERE r.state = 'blocked' AND r.limit_key IS NOT NULL AND r.app = $1 AND r.limit_key = w.key OFFSET 0);

-- name: limits.starts
-- Starts of rates, as far as they are kept.
SELECT key, at, count, until FROM evertick.grants WHERE app = $1 AND key = ANY($2::text[]) ORDER BY key, at;

-- name: limits.forget_starts
-- To be written anew.
DELETE FROM evertick.grants WHERE app = $1 AND key = ANY($2::text[]);

-- name: limits.put_starts
-- Starts of one moment each. Needed until the period is over.
INSERT INTO evertick.grants (app, key, at, count, until)
SELECT $1, w.* FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w(key, at, count, until);

-- name: limits.set_times
-- When to look at keys again: the earliest counts, for looking too early only costs a look.
INSERT INTO evertick.limits AS l (app, key, free_at, set_at)
SELECT $1, w.key, w.free_at, $4 FROM unnest($2::text[], $3::bigint[]) AS w(key, free_at)
ON CONFLICT (app, key) DO UPDATE SET free_at = least(l.free_at, excluded.free_at), set_at = excluded.set_at;

-- name: limits.forget_times
-- They say nothing any more.
DELETE FROM evertick.limits WHERE app = $1 AND key = ANY($2::text[]);

-- name: limits.looked_up_to
-- Where the next claim of the node looks on; NULL: it has looked at all. What it was asked for meanwhile stays.
WITH over AS (DELETE FROM evertick.looks WHERE id = ANY($2::bigint[]))
INSERT INTO evertick.looks (node, looked_at) SELECT $1, $3 WHERE $3::text IS NOT NULL;

-- name: limits.forget_terms
-- A node has looked at all that was held back of its tasks: what only dead nodes held it back under is over. Not if it was
-- asked to look again meanwhile: one may have died since whose keys it has passed.
DELETE FROM evertick.held_under h
WHERE h.app = $1 AND h.task IN (SELECT t.name FROM evertick.tasks t WHERE t.app = $1 AND t.node = $2)
    AND NOT EXISTS (SELECT FROM evertick.looks l WHERE l.node = $2 OFFSET 0)
    AND NOT EXISTS (SELECT FROM evertick.tasks t
        WHERE t.app = $1 AND t.name = h.task AND t.limits = h.limits OFFSET 0);

-- ================================================================================================= nodes

-- name: join
-- Sent again it is a beat that says anew what the node is about; a dead incarnation never returns, and gets no row here.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
joined AS (
    INSERT INTO evertick.nodes AS n (id, name, app, version, started_at, beat_at, lease, lease_until, queues, declares)
    SELECT $1, $2, $3, $4, c.now, c.now, $5, c.now + $5, $6, $7 FROM clock c
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, lease_until = excluded.lease_until,
        queues = excluded.queues, declares = excluded.declares
    WHERE n.died_at IS NULL RETURNING n.id, n.app, n.name, n.xmax = 0 AS is_new),
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT j.app, f.epoch, c.now, 'node.joined', json_build_array(json_build_array(j.id, j.name))::text
    FROM joined j JOIN evertick.feeds f ON f.app = j.app CROSS JOIN clock c WHERE j.is_new)
SELECT (SELECT now FROM clock) AS now, EXISTS (SELECT FROM joined) AS is_alive,
    EXISTS (SELECT FROM joined WHERE is_new) AS is_new;

-- name: join.forget
-- Sent again: what it does not name any more it does not know. What it held back under limits that it does not bring any
-- more, others may let through, as after a death.
WITH said AS (SELECT * FROM unnest($2::text[], $3::text[]) AS t(name, limits)),
forgotten AS (DELETE FROM evertick.tasks t WHERE t.node = $1 AND NOT EXISTS (SELECT FROM said WHERE said.name = t.name)),
looks AS (
    INSERT INTO evertick.looks (node, looked_at)
    SELECT DISTINCT k.id, '' FROM evertick.tasks mine
    JOIN evertick.tasks l ON l.app = mine.app AND l.name = mine.name AND l.limits <> mine.limits
    JOIN evertick.nodes k ON k.id = l.node AND k.died_at IS NULL
    WHERE mine.node = $1 AND mine.limits <> '' AND k.id <> $1
        AND NOT EXISTS (SELECT FROM said WHERE said.name = mine.name AND said.limits = mine.limits)
    RETURNING node)
SELECT EXISTS (SELECT FROM looks) AS has_news;

-- name: join.tasks
-- What it knows, and under which limits; these are remembered beyond its death.
WITH may_hold_back AS (
    INSERT INTO evertick.held_under (app, task, limits)
    SELECT $1, t.name, t.limits FROM unnest($3::text[], $5::text[]) AS t(name, limits) WHERE t.limits <> ''
    ON CONFLICT DO NOTHING)
INSERT INTO evertick.tasks (app, name, node, hash, limits)
SELECT $1, t.name, $2, t.hash, t.limits FROM unnest($3::text[], $4::text[], $5::text[]) AS t(name, hash, limits)
ON CONFLICT (app, name, node) DO UPDATE SET hash = excluded.hash, limits = excluded.limits;

-- name: join.look
-- It looks again if runs of its tasks may be held back under limits that it does not have.
INSERT INTO evertick.looks (node, looked_at)
SELECT $2, '' WHERE EXISTS (
    SELECT FROM unnest($3::text[], $4::text[]) AS t(name, limits)
    JOIN evertick.held_under h ON h.app = $1 AND h.task = t.name AND h.limits <> t.limits);

-- name: join.unpark
-- Runs that waited for a node like this: it knows the task, or has another signature than the one they did not fit.
-- A run that is being parked right now by a node that does not see this one yet is freed by the next upkeep.
UPDATE evertick.runs SET state = 'waiting', parked_for = NULL, task_hash = NULL WHERE id = ANY(ARRAY(
    SELECT r.id FROM unnest($2::text[], $3::text[]) AS t(name, hash)
    JOIN evertick.runs r ON r.state = 'parked' AND r.app = $1 AND r.task = t.name
        AND (r.parked_for = 'unknown_task' OR (r.parked_for = 'bad_arguments' AND r.task_hash IS DISTINCT FROM t.hash))
    ORDER BY r.id FOR UPDATE OF r));

-- name: beat
-- Extends the lease from the store's now, unless death is written down; tells which of its runs are to be cancelled, and
-- whether the statements that look after the dead, the held, the dispatched and the duties have anything to find. The guard
-- is the row itself: a judge who was faster has written into it.
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
-- The tasks of dead nodes are known by them no more. What they held back the living may let through: those who know one
-- of their limited tasks under other limits look again. Always a new row, so that none waits for a claim.
forgotten AS (DELETE FROM evertick.tasks WHERE node IN (SELECT id FROM dead)),
looks AS (
    INSERT INTO evertick.looks (node, looked_at)
    SELECT DISTINCT k.id, '' FROM dead
    JOIN evertick.tasks d ON d.node = dead.id AND d.limits <> ''
    JOIN evertick.tasks l ON l.app = d.app AND l.name = d.name AND l.limits <> d.limits
    JOIN evertick.nodes k ON k.id = l.node AND k.died_at IS NULL
    WHERE k.id NOT IN (SELECT id FROM dead) RETURNING node)

-- name: die
-- Written once. $2 is what the feed calls it.
WITH dead AS (
    UPDATE evertick.nodes SET died_at = (SELECT evertick.now_us()) WHERE id = $1 AND died_at IS NULL
    RETURNING id, app, name, died_at),
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT d.app, f.epoch, d.died_at, $2::text, json_build_array(json_build_array(d.id, d.name))::text
    FROM dead d JOIN evertick.feeds f ON f.app = d.app),
@forget_dead
SELECT EXISTS (SELECT FROM looks) AS has_news;

-- name: judge
-- Written once, by the first that sees it: the second one looks again at the row, and finds the death. None after $1.
WITH clock AS MATERIALIZED (SELECT evertick.now_us() AS now),
dead AS (
    UPDATE evertick.nodes SET died_at = (SELECT now FROM clock)
    WHERE died_at IS NULL AND (SELECT now FROM clock) <= $1::bigint
        AND (lease_until < (SELECT now FROM clock) OR beat_at > (SELECT now FROM clock) + lease)
    RETURNING id, app, name, died_at),
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT d.app, f.epoch, d.died_at, 'node.died', json_agg(json_build_array(d.id, d.name))::text
    FROM dead d JOIN evertick.feeds f ON f.app = d.app GROUP BY d.app, f.epoch, d.died_at),
@forget_dead
SELECT id, EXISTS (SELECT FROM looks) AS has_news FROM dead;

-- name: rehome.find
-- Running rows whose node is dead or missing, or, until $5, that are long past their deadline, of any node but the
-- node that asks ($2), which stops its own itself; not locked yet.
-- From holder to holder by a seek each: what the living hold is not looked at. With them, without a fence, what waits for
-- such a node alone: no other is to have it. What it has dispatched goes on without it.
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
-- Those that are still held by the very claims that were found: a claim since then has a fence that was not. What others
-- are at is theirs.
SELECT r.id::text AS id, r.task, r.queue, r.losses + 1 AS losses, r.at_most_once, r.is_cancel_requested, r.cancel_reason,
    r.limit_key, r.frees, r.schedule_id, @readable AS is_readable, r.queue >= '@' AND r.queue < 'A' AND NOT EXISTS (
        SELECT FROM evertick.nodes n WHERE n.id = substr(r.queue, 2) AND n.died_at IS NULL OFFSET 0) AS is_left_alone
FROM evertick.runs r
WHERE r.id = ANY($2::uuid[]) AND r.app = $1 AND r.started_at IS NOT NULL AND r.fence = ANY($3::bigint[])
ORDER BY r.priority DESC, r.due_at, r.id FOR UPDATE SKIP LOCKED;

-- name: rehome.lock_bound
-- Runs that wait for a node that is gone; it cannot have begun since, for the dead claim nothing.
SELECT r.id::text AS id FROM evertick.runs r
WHERE r.id = ANY($2::uuid[]) AND r.app = $1 AND r.started_at IS NULL ORDER BY r.id FOR UPDATE SKIP LOCKED;

-- name: rehome.lose
-- Lost claims: their owners may not write any more, not even be told "already".
UPDATE evertick.runs SET losses = losses + 1, fence = NULL WHERE id = ANY($1::uuid[]);

-- name: rehome.release
-- Back to waiting for others, due anew like released ones.
UPDATE evertick.runs
SET state = 'waiting', node = NULL, due_at = (SELECT evertick.now_us()), started_at = NULL, deadline = NULL,
    limit_key = NULL, @in_no_hands
WHERE id = ANY($1::uuid[]);

-- ================================================================================================= dispatched

-- name: apply_reports.lock
-- The guard of every report: which of these runs are dispatched, under which fence, and stay so until the commit. Those that
-- are held here have no `dispatched_at`.
SELECT id::text AS id, fence, attempts, at_most_once, is_cancel_requested, cancel_reason, dispatch, dispatched_at, pushed_at,
    taken_at, killed_at, deadline, fire_at, schedule_id, frees, limit_key, @feed_epoch IS NOT NULL AS has_feed,
    evertick.now_us() AS now
FROM evertick.runs WHERE app = $1 AND id = ANY($2::uuid[]) AND dispatched_at IS NOT NULL ORDER BY id FOR UPDATE;

-- name: apply_reports.progress
-- How they stand now.
UPDATE evertick.runs r
SET pushed_at = m.pushed_at, taken_at = m.taken_at, deadline = m.deadline, progress = coalesce(m.progress, r.progress),
    progress_text = coalesce(m.progress_text, r.progress_text),
    dispatch = CASE WHEN m.worker IS NULL THEN r.dispatch
        ELSE (r.dispatch::jsonb || jsonb_build_object('worker', m.worker))::text END
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::float8[], $6::text[], $7::text[])
    AS m(id, pushed_at, taken_at, deadline, progress, progress_text, worker)
WHERE r.id = ANY(ARRAY[m.id]);

-- name: apply_reports.last_lines
-- Behind which line of its log each dispatch goes on, and how much it has; no line is read for that.
SELECT w.id::text AS id, w.fence, coalesce(max(l.seq + l.count), 0) AS last, coalesce(sum(l.count), 0)::bigint AS count,
    coalesce(sum(octet_length(l.lines)), 0)::bigint AS size
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS w(id, fence, fire_at)
LEFT JOIN evertick.log_chunks l ON l.run = w.id AND l.fence = w.fence AND l.fire_at = w.fire_at
GROUP BY w.id, w.fence;

-- name: apply_reports.done
-- Locked ones end as their workers say, into history in the same statement. What is alike for all is given once. Second line of defence: a moment that
-- history has already is not written twice.
WITH gone AS (
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
            ELSE (r.dispatch::jsonb || jsonb_build_object('worker', t.worker))::text END AS told_dispatch),
kept AS (
    INSERT INTO evertick.history (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, args, labels, expires, caused_by, traceparent, losses, node, fence, created_at, started_at,
        is_cancel_requested, cancel_reason, progress, progress_text, verdict, attempts, reason, error, result, finished_at,
        dispatch)
    SELECT id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, args, labels, expires, caused_by, traceparent, losses, node, fence, created_at, began,
        is_cancel_requested, cancel_reason, progress, progress_text, verdict, given_attempts, shown_reason, given_error,
        result, (SELECT evertick.now_us()), told_dispatch
    FROM gone ON CONFLICT DO NOTHING RETURNING id),
told AS (
    INSERT INTO evertick.feed (app, epoch, at, kind, body)
    SELECT $1, @feed_epoch, (SELECT evertick.now_us()), 'run.finished', json_agg(json_build_array(g.id, g.schedule_key,
        g.task, g.fire_at, g.due_at, g.cause, g.verdict, g.shown_reason, g.given_attempts, g.node))::text
    FROM (SELECT *, (row_number() OVER () - 1) / 500 AS part FROM gone) g
    WHERE @feed_epoch IS NOT NULL GROUP BY g.part)
SELECT array_agg(id::text) AS ids, (SELECT count(*) FROM kept) AS kept FROM gone;

-- name: apply_reports.answered_before
-- Which of these dispatches have ended or gone back by their own word. Asked of the days around their making first ($4 to
-- $5).
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
-- To be cancelled, the longest overdue first; not locked yet.
SELECT id::text AS id FROM evertick.runs
WHERE state = 'dispatched' AND is_cancel_requested AND app = $1 AND deadline <= (SELECT evertick.now_us())
ORDER BY deadline LIMIT $2;

-- name: check_dispatched.find_overdue
-- Those of channels that are heard whose time was over before that ($3, by channel: until when); the longest overdue
-- first, not locked yet. Walks over those of other channels: they are many only while a queue is away.
SELECT id::text AS id FROM evertick.runs
WHERE state = 'dispatched' AND app = $1 AND deadline <= (SELECT evertick.now_us()) AND NOT is_cancel_requested
    AND deadline <= ($3::jsonb ->> (dispatch::json ->> 'to'))::bigint
ORDER BY deadline LIMIT $2;

-- name: check_dispatched.lock
-- Those that are still to be looked at, now that they are locked: a report may have come meanwhile. What others are at is
-- theirs.
SELECT id::text AS id, fence, attempts, losses, at_most_once, is_cancel_requested, cancel_reason, dispatch, dispatched_at,
    pushed_at, taken_at, killed_at, deadline, schedule_id, frees, limit_key, evertick.now_us() AS now
FROM evertick.runs
WHERE app = $1 AND id = ANY($2::uuid[]) AND dispatched_at IS NOT NULL AND deadline <= (SELECT evertick.now_us())
ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: check_dispatched.withdraw
-- Messages that dispatch what is to be cancelled, unless they are on their way. Waits for a claim of one.
DELETE FROM evertick.outbox m WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM unnest($2::text[], $3::text[]) AS w(channel, key)
    JOIN evertick.outbox l ON l.app = $1 AND l.channel = w.channel AND l.key = w.key
    WHERE l.state IN ('waiting', 'dead') ORDER BY l.id FOR UPDATE OF l));

-- name: check_dispatched.unsent
-- Of these messages, those that are not in the outbox any more.
SELECT w.key FROM unnest($2::text[], $3::text[]) AS w(channel, key)
WHERE NOT EXISTS (SELECT FROM evertick.outbox m
    WHERE m.app = $1 AND m.channel = w.channel AND m.key = w.key OFFSET 0);

-- name: check_dispatched.revoke
-- Claims that are over, as by rehome.lose; with the losses that they then have.
UPDATE evertick.runs r SET losses = t.losses, fence = NULL
FROM unnest($1::uuid[], $2::int[]) AS t(id, losses) WHERE r.id = ANY(ARRAY[t.id]);

-- name: check_dispatched.postpone
-- Runs whose reports were not read for all of their time are looked at later.
UPDATE evertick.runs r SET deadline = t.until
FROM unnest($1::uuid[], $2::bigint[]) AS t(id, until) WHERE r.id = ANY(ARRAY[t.id]);

-- name: check_dispatched.stopping
-- Their workers are told to stop, and have until then.
UPDATE evertick.runs r SET killed_at = (SELECT evertick.now_us()), deadline = t.until
FROM unnest($1::uuid[], $2::bigint[]) AS t(id, until) WHERE r.id = ANY(ARRAY[t.id]);

-- name: nodes
-- For people, oldest first.
SELECT n.*,
    (SELECT count(*) FROM evertick.runs r WHERE r.state = 'running' AND r.app = n.app AND r.node = n.id) AS running,
    (SELECT coalesce(json_agg(t.name ORDER BY t.name), '[]')::text FROM evertick.tasks t
        WHERE t.node = n.id AND t.app = n.app) AS tasks
FROM evertick.nodes n WHERE n.app = $1 ORDER BY n.started_at, n.id;

-- ================================================================================================= duties

-- part: duty
-- A duty `d` and its holder `n`, who lives.
d.name, n.id AS node, n.name AS node_name, d.term, d.since, d.ticked_at, d.next_at, d.error
FROM evertick.duties d LEFT JOIN evertick.nodes n ON n.id = d.node AND n.died_at IS NULL

-- name: duties
-- For people, by name.
SELECT @duty WHERE d.app = $1 AND d.name <> '' ORDER BY d.name;

-- name: duties.named
-- For those who declare them; a row for each that is known, and one without a name for the time.
SELECT evertick.now_us() AS now, held.* FROM (VALUES (1)) AS always
LEFT JOIN (SELECT @duty WHERE d.app = $1 AND d.name = ANY($2::text[]) ORDER BY d.name) AS held ON true;

-- name: hold_duties.begin
-- Rows for duties that no node has had before, or that were forgotten. May wait for one that is being forgotten.
INSERT INTO evertick.duties (app, name, term, since)
SELECT $1, t.name, 0, (SELECT evertick.now_us()) FROM unnest($3::text[]) AS t(name)
WHERE EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL)
ORDER BY t.name
ON CONFLICT DO NOTHING;

-- name: hold_duties.lock
-- Before the guard that looks at other tables: a holder that joined after the guard's statement began would look dead.
SELECT name FROM evertick.duties WHERE app = $1 AND name = ANY($2::text[]) ORDER BY name FOR UPDATE;

-- name: hold_duties.take
-- Those that no living node holds, by a living one. They are locked. The terms of a new one go on above all that were
-- forgotten; read here and not with its row, whose statement may have begun before the old one was forgotten.
UPDATE evertick.duties d SET node = $2, since = (SELECT evertick.now_us()), term = 1 + CASE WHEN d.term > 0 THEN d.term
    ELSE coalesce((SELECT old.term FROM evertick.duties old WHERE old.app = $1 AND old.name = ''), 0) END
WHERE d.app = $1 AND d.name = ANY($3::text[])
    AND NOT EXISTS (SELECT FROM evertick.nodes k WHERE k.id = d.node AND k.died_at IS NULL)
    AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $2 AND k.died_at IS NULL);

-- name: tick_duty
-- Only by its holder, who lives. A death that this does not see yet comes after it.
UPDATE evertick.duties
SET ticked_at = CASE WHEN $5::boolean THEN (SELECT evertick.now_us()) ELSE ticked_at END, next_at = $6, error = $7
WHERE app = $1 AND name = $2 AND node = $3 AND term = $4
    AND EXISTS (SELECT FROM evertick.nodes k WHERE k.id = $3 AND k.died_at IS NULL);

-- name: resign_duties
-- Under the term each was held by: one that was given up and taken again since is another.
UPDATE evertick.duties d SET node = NULL FROM unnest($3::text[], $4::bigint[]) AS t(name, term)
WHERE d.app = $1 AND d.name = t.name AND d.node = $2 AND d.term = t.term;

-- name: resign
-- All that a node holds.
UPDATE evertick.duties SET node = NULL WHERE node = $1;

-- ================================================================================================= upkeep

-- name: park_unknown.has_limited
-- Whether something was let through that no live node knows.
SELECT EXISTS (
    SELECT FROM evertick.runs r
    WHERE r.state = 'waiting' AND r.limit_key IS NOT NULL AND r.app = $1
        AND r.task NOT IN (SELECT t.name FROM evertick.tasks t WHERE t.app = $1)) AS has_limited;

-- name: park_unknown
-- Due and known to no live node, found in the claim index; out of it they go. What is for one node alone is left to
-- re-homing, and without the gate ($3) what was let through to the next upkeep.
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
-- Parked runs that some live node can run: the task is known, or with another signature.
UPDATE evertick.runs SET state = 'waiting', parked_for = NULL, task_hash = NULL WHERE id = ANY(ARRAY(
    SELECT r.id FROM evertick.runs r
    WHERE r.state = 'parked' AND r.app = $1 AND (
        (r.parked_for = 'unknown_task' AND EXISTS (
            SELECT FROM evertick.tasks t WHERE t.app = $1 AND t.name = r.task))
        OR (r.parked_for = 'bad_arguments' AND EXISTS (
            SELECT FROM evertick.tasks t WHERE t.app = $1 AND t.name = r.task AND t.hash IS DISTINCT FROM r.task_hash)))
    LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: prune.old_runs
-- By the index on fire_at: nothing ends before its moment but a cancelled run, which stays until that moment has passed.
SELECT id::text AS id, fire_at FROM evertick.history
WHERE app = $1 AND fire_at + 0 < $2 AND fire_at < $2 AND finished_at < $3 ORDER BY fire_at + 0 LIMIT $4;

-- name: prune.old_runs_without_day
-- The same of what has no partition of its day, which nothing else will take away.
SELECT id::text AS id, fire_at FROM evertick.history_default
WHERE app = $1 AND fire_at + 0 < $2 AND finished_at < $2 ORDER BY fire_at + 0 LIMIT $3;

-- name: prune.schedules
-- The next schedules to look at, removed ones too.
SELECT DISTINCT key, schedule_id FROM evertick.schedule_versions
WHERE app = $1 AND (key, schedule_id) > ($2, $3) ORDER BY key, schedule_id LIMIT $4;

-- name: prune.surplus_runs
-- Beyond the newest of each of these schedules.
SELECT h.id::text AS id, h.fire_at FROM unnest($1::bigint[]) AS w(id) CROSS JOIN LATERAL (
    SELECT id, fire_at FROM evertick.history WHERE schedule_id = w.id ORDER BY fire_at DESC, id DESC OFFSET $2 LIMIT $3) h
LIMIT $3;

-- name: prune.runs
-- Runs of the past, with their earlier tries and what they wrote. $2 and $3 bound the days that are opened.
WITH tries AS (DELETE FROM evertick.attempts WHERE run = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3),
lines AS (DELETE FROM evertick.log_chunks WHERE run = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3)
DELETE FROM evertick.history WHERE id = ANY($1::uuid[]) AND fire_at BETWEEN $2 AND $3;

-- name: prune.gaps
-- Gaps that ended before.
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
-- Nodes long dead, unless a run still waits to be re-homed from them; with what they were asked to look at.
WITH old AS MATERIALIZED (
    SELECT n.id FROM evertick.nodes n
    WHERE n.app = $1 AND n.died_at < greatest($2, (SELECT evertick.now_us()) - $3::bigint)
        AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.state = 'running' AND r.app = $1 AND r.node = n.id)
    LIMIT $4),
looks AS (DELETE FROM evertick.looks WHERE node IN (SELECT id FROM old))
DELETE FROM evertick.nodes WHERE id IN (SELECT id FROM old);

-- name: prune.duties
-- Duties not held or done for long, and whose last holder is forgotten, too. The age stands outside again: it
-- is looked at anew in a row that was just being taken.
DELETE FROM evertick.duties WHERE app = $1 AND greatest(since, ticked_at) < least($2, (SELECT evertick.now_us()) - $3::bigint)
    AND name = ANY(ARRAY(
        SELECT d.name FROM evertick.duties d
        WHERE d.app = $1 AND d.name <> '' AND greatest(d.since, d.ticked_at) < $2
            AND NOT EXISTS (SELECT FROM evertick.nodes n WHERE n.id = d.node)
        LIMIT $4))
RETURNING term;

-- name: prune.duty_terms
-- The greatest term that was forgotten.
INSERT INTO evertick.duties AS d (app, name, term, since) VALUES ($1, '', $2, (SELECT evertick.now_us()))
ON CONFLICT (app, name) DO UPDATE SET term = greatest(d.term, excluded.term);

-- name: prune.finished_schedules
-- One-shots that are over: no cursor, not paused, not declared, nothing live, nothing left in history.
SELECT s.id FROM evertick.due d JOIN evertick.schedules s ON s.id = d.schedule_id
WHERE d.app = $1 AND d.fire_at IS NULL AND d.at IS NULL AND d.after_end IS NULL
    AND s.created_at < $2 AND s.pause IS NULL AND s.declared IS NULL
    AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = s.id)
    AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.schedule_id = s.id)
LIMIT $3;

-- name: prune.still_finished
-- Of those, now that they are locked, the ones of which it still holds.
SELECT d.schedule_id AS id FROM evertick.due d
WHERE d.schedule_id = ANY($1::bigint[]) AND d.fire_at IS NULL AND d.at IS NULL AND d.after_end IS NULL
    AND NOT EXISTS (SELECT FROM evertick.schedules s
        WHERE s.id = d.schedule_id AND (s.pause IS NOT NULL OR s.declared IS NOT NULL))
    AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = d.schedule_id);

-- name: prune.versions
-- Definitions of schedules that are gone and that no run refers to any more.
DELETE FROM evertick.schedule_versions v USING unnest($2::text[], $3::bigint[]) AS w(key, schedule_id)
WHERE v.app = $1 AND v.key = w.key AND v.schedule_id = w.schedule_id
    AND NOT EXISTS (SELECT FROM evertick.schedules s WHERE s.id = v.schedule_id)
    AND NOT EXISTS (SELECT FROM evertick.runs r WHERE r.schedule_id = v.schedule_id)
    AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.schedule_id = v.schedule_id);

-- name: pulse.failed
-- The newest by their end, from the partial index of the last days: what goes well is not in it. A rerun stands for what
-- it repeats, if it is live or was tried.
SELECT coalesce(f.schedule_key, f.task) AS name, f.verdict, count(*) AS count FROM (
    SELECT id::text AS id, schedule_key, task, verdict FROM evertick.history
    WHERE verdict IN ('failed', 'lost') AND app = $1 AND finished_at > $2 AND fire_at > $3
    ORDER BY finished_at DESC LIMIT $4) f
WHERE NOT EXISTS (SELECT FROM evertick.runs r WHERE r.cause = 'rerun' AND r.app = $1 AND r.caused_by = f.id)
    AND NOT EXISTS (SELECT FROM evertick.history h WHERE h.cause = 'rerun' AND h.app = $1 AND h.caused_by = f.id
        AND h.fire_at > $3 AND h.verdict IN ('succeeded', 'failed', 'lost'))
GROUP BY 1, 2 ORDER BY 3 DESC, 1;

-- name: pulse
-- Counted up to a bound: more than that is all the same to a reader. The oldest by one seek per queue and priority.
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
-- Which days a table has.
SELECT c.relname AS name FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1) AND c.relname !~ '_default$' ORDER BY c.relname;

-- name: partitions.lock
-- One at a time; the second finds them made, and does not wait.
SELECT pg_try_advisory_xact_lock(hashtextextended('evertick.partitions' || $1::text, 0)) AS is_mine;

-- name: partitions.keep_from
-- How long an app keeps its feed, as it is set now.
INSERT INTO evertick.kept_from AS k (app, moment) VALUES ($1, $2)
ON CONFLICT (app) DO UPDATE SET moment = excluded.moment WHERE k.moment <> excluded.moment;

-- name: partitions.is_kept
-- Whether a day, from $1 to $2, must stay: an app that is in it keeps what is before $3, or one of its runs ended so late
-- that it is kept. By a seek for each app, and one to the latest of those that ended a day after their moment.
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
-- By name, by a seek per app into what is large; nodes are few.
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

-- ================================================================================================= care

-- name: maintenance.about
-- Which store it is, how far it has come, and how much room it takes.
SELECT m.store_id, m.version, (
    SELECT coalesce(sum(pg_catalog.pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind = 'r') AS bytes
FROM evertick.meta m;

-- name: maintenance.objects
-- What there is, but for the days of history and what hangs on them: tables, columns, indexes, sequences, functions.
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
-- Which options of storage each table has.
SELECT c.relname AS name, coalesce(c.reloptions, '{}') AS options
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r';

-- name: maintenance.invalid_indexes
-- Left behind by a REINDEX that was broken off.
SELECT c.relname AS name FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND NOT i.indisvalid ORDER BY c.relname;

-- name: maintenance.oldest
-- The oldest moment in history, by one seek per app.
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
-- A cursor without its schedule is looked at for ever.
SELECT count(*) AS count FROM (
    SELECT FROM evertick.due d
    WHERE NOT EXISTS (SELECT FROM evertick.schedules s WHERE s.id = d.schedule_id) LIMIT $1) b;

-- ================================================================================================= outbox

-- part: new_messages
-- Unless their id or their key is known; by key, so that no two wait crosswise. Waits for one that is writing the same
-- key.
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
-- Messages, for people.
@new_messages RETURNING m.*;

-- name: send.with_cause
-- Messages that go with what causes them.
@new_messages;

-- name: send.known
-- The messages that are there instead: sent twice, or those that have the keys.
SELECT m.* FROM evertick.outbox m WHERE m.id = ANY($2::uuid[]) AND m.app IS NOT DISTINCT FROM $1
UNION
SELECT m.* FROM unnest($3::text[], $4::text[]) AS n(channel, key)
JOIN evertick.outbox m ON m.app = $1 AND m.channel = n.channel AND m.key = n.key;

-- name: claim_messages
-- All in one statement: what it takes is locked when the fence is drawn. Always answers a row, with or without a
-- message. Lists messages on their way that will never be settled: their node is dead or missing, or it is the asking
-- one, which does not know of them.
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
-- Due again, if they are on their way under the very claims that were found: a claim since then has another fence. A
-- death costs an attempt, whatever came of it. Without a fence their old owner gets "lost".
UPDATE evertick.outbox m
SET state = 'waiting', due_at = (SELECT evertick.now_us()), claimed_at = NULL, node = NULL, fence = NULL,
    attempts = m.attempts + CASE WHEN m.node = $2 THEN 0 ELSE 1 END, error = CASE WHEN m.node = $2 THEN m.error ELSE $5 END
WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM unnest($3::uuid[], $4::bigint[]) AS f(id, fence)
    JOIN evertick.outbox l ON l.id = ANY(ARRAY[f.id]) AND l.fence = f.fence AND l.app IS NOT DISTINCT FROM $1
        AND l.claimed_at IS NOT NULL
    ORDER BY f.id FOR UPDATE OF l SKIP LOCKED));

-- name: settle_messages
-- Guarded by the claim. What was sent is remembered by its key, not by its body. What is alike for all of them is given
-- once. Answers the ids only if some are missing.
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
-- Settled by these very claims.
SELECT m.id::text AS id, m.fence FROM unnest($3::uuid[], $4::bigint[]) AS s(id, fence)
JOIN evertick.outbox m ON m.id = ANY(ARRAY[s.id]) AND m.fence = s.fence AND m.node = $2
WHERE m.app IS NOT DISTINCT FROM $1 AND m.claimed_at IS NULL;

-- name: messages
-- For people, newest first: ids come in the order of time.
SELECT m.* FROM evertick.outbox m
WHERE m.id BETWEEN $5::uuid AND $6::uuid AND m.app IS NOT DISTINCT FROM $1
    AND ($2::text IS NULL OR m.channel = $2) AND ($3::text[] IS NULL OR m.state = ANY($3))
ORDER BY m.id DESC LIMIT $4;

-- name: messages.by_id
-- Those with these ids.
SELECT m.* FROM evertick.outbox m
WHERE m.id = ANY($5::uuid[]) AND m.app IS NOT DISTINCT FROM $1
    AND ($2::text IS NULL OR m.channel = $2) AND ($3::text[] IS NULL OR m.state = ANY($3))
ORDER BY m.id DESC LIMIT $4;

-- name: messages.by_key
-- The one that a channel knows by this key.
SELECT m.* FROM evertick.outbox m
WHERE m.app = $1 AND m.channel = $2::text AND m.key = $5 AND ($3::text[] IS NULL OR m.state = ANY($3)) LIMIT $4;

-- name: messages.unsent
-- Without a look at the many that were sent.
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
-- How channels with messages that are not sent stand, each found by a seek; counting stops at a bound.
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
-- Due now; a dead one begins anew. Not for a run that is in other hands by now, or in none.
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
-- Due now, those of a channel that were tried in vain: what they waited for is back. What another is just taking, or
-- hastening, is left to it. `+ 0` keeps it from the index of those that fail, where what is due now would be passed over
-- once for every batch.
WITH moment AS MATERIALIZED (SELECT evertick.now_us() AS now)
UPDATE evertick.outbox m SET due_at = (SELECT now FROM moment)
WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM evertick.outbox l
    WHERE l.state = 'waiting' AND l.app = $1 AND l.channel = $2 AND l.due_at > (SELECT now FROM moment)
        AND l.attempts + 0 > 0
    ORDER BY l.due_at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING m.id;

-- name: drop_messages.dispatch
-- Which runs these messages are to dispatch.
SELECT caused_by AS id FROM evertick.outbox
WHERE id = ANY($2::uuid[]) AND app IS NOT DISTINCT FROM $1 AND state IN ('waiting', 'dead') AND dispatches IS NOT NULL;

-- name: drop_messages.cancel
-- Of locked runs, those that messages were to dispatch which will not get there.
UPDATE evertick.runs r
SET is_cancel_requested = true, cancel_reason = coalesce(r.cancel_reason, $3), deadline = (SELECT evertick.now_us())
FROM evertick.outbox m
WHERE m.id = ANY($2::uuid[]) AND m.app IS NOT DISTINCT FROM $1 AND m.state IN ('waiting', 'dead')
    AND m.dispatches IS NOT NULL AND r.id = ANY(ARRAY[m.caused_by::uuid]) AND r.app = $1 AND r.fence = m.dispatches
    AND r.dispatched_at IS NOT NULL AND r.pushed_at IS NULL;

-- name: drop_messages
-- Messages that are not on their way.
DELETE FROM evertick.outbox m WHERE m.id = ANY(ARRAY(
    SELECT l.id FROM evertick.outbox l
    WHERE l.id = ANY($2::uuid[]) AND l.app IS NOT DISTINCT FROM $1 AND l.state IN ('waiting', 'dead') ORDER BY l.id FOR UPDATE))
RETURNING m.id::text AS id;

-- name: prune.messages
-- Sent and dead ones whose time to be remembered is over.
DELETE FROM evertick.outbox WHERE id = ANY(ARRAY(
    SELECT id FROM evertick.outbox
    WHERE app = $1 AND forget_at <= (SELECT evertick.now_us()) ORDER BY forget_at LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: join.channels
-- The channels it sends on, and which tasks it leaves to others.
UPDATE evertick.nodes SET channels = $2, leaves = $3 WHERE id = $1;

-- ================================================================================================= feed

-- name: feed.publish
-- Facts as they are given.
INSERT INTO evertick.feed (app, epoch, at, kind, body)
SELECT $1, @feed_epoch, (SELECT evertick.now_us()), $2::text, w.body FROM unnest($3::text[]) AS w(body)
WHERE @feed_epoch IS NOT NULL;

-- name: feed.publish_runs
-- Live runs as they are now; without a reason their own.
INSERT INTO evertick.feed (app, epoch, at, kind, body)
SELECT $1, @feed_epoch, (SELECT evertick.now_us()), $2::text, json_agg(json_build_array(r.id, r.schedule_key, r.task,
    r.fire_at, r.due_at, r.cause, NULL, coalesce(w.reason, r.parked_for, r.reason), r.attempts, r.node)
    ORDER BY w.place)::text
FROM unnest($3::uuid[], $4::text[]) WITH ORDINALITY AS w(id, reason, place)
JOIN evertick.runs r ON r.id = ANY(ARRAY[w.id]) AND r.app = $1
WHERE @feed_epoch IS NOT NULL GROUP BY (w.place - 1) / 500;

-- name: keep_feed
-- One that is on goes on, with the time it is kept for from now on.
INSERT INTO evertick.feeds AS f (app, epoch, kept, cluster)
SELECT $1, $2, $3, c.system_identifier FROM pg_control_system() c
ON CONFLICT (app) DO UPDATE SET kept = excluded.kept;

-- name: keep_feed.end
-- Its rows are pruned.
DELETE FROM evertick.feeds WHERE app = $1;

-- name: feed.renew
-- In another server the order of the transactions is lost, and with it that of the events.
UPDATE evertick.feeds f SET epoch = $2, cluster = c.system_identifier, pruned_txid = '0', pruned_seq = 0
FROM pg_control_system() c WHERE f.app = $1 AND f.cluster <> c.system_identifier;

-- name: feed
-- A part of it and its bounds, as of one moment; always a row, if there is a feed. Below the oldest transaction that is
-- still open: nothing can be committed there any more.
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
-- How long it is kept, and what holds it up: a transaction that has written something and is still open, anywhere in the
-- server.
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
-- Those that are kept no longer among the oldest, so that a look at a feed with nothing to prune costs a bite. Not what
-- was not readable yet. A cursor before the last of them is refused from now on.
WITH bounds AS MATERIALIZED (
    SELECT f.epoch, evertick.now_us() - f.kept AS before, pg_snapshot_xmin(pg_current_snapshot()) AS open_txid
    FROM evertick.feeds f WHERE f.app = $1),
old AS MATERIALIZED (
    SELECT o.epoch, o.txid, o.seq FROM bounds b CROSS JOIN LATERAL (
        SELECT e.epoch, e.txid, e.seq, e.at FROM evertick.feed e
        WHERE e.app = $1 AND e.epoch = b.epoch AND e.txid < b.open_txid ORDER BY e.txid, e.seq LIMIT $2) o
    WHERE o.at < b.before),
gone AS (
    DELETE FROM evertick.feed e USING old o
    WHERE e.app = $1 AND e.epoch = o.epoch AND e.txid = o.txid AND e.seq = o.seq),
marked AS (
    UPDATE evertick.feeds f SET pruned_txid = l.txid, pruned_seq = l.seq
    FROM (SELECT txid, seq FROM old ORDER BY txid DESC, seq DESC LIMIT 1) l
    WHERE f.app = $1 AND (f.pruned_txid, f.pruned_seq) < (l.txid, l.seq))
SELECT count(*) AS count FROM old;

-- name: prune.feed_ends
-- What is left of feeds that were turned off, or whose order was lost.
DELETE FROM evertick.feed WHERE ctid = ANY(ARRAY(
    SELECT w.ctid FROM (
        SELECT e.ctid FROM evertick.feed e WHERE e.app = $1 AND e.epoch < coalesce(@feed_epoch, '')
        UNION ALL
        SELECT e.ctid FROM evertick.feed e WHERE e.app = $1 AND e.epoch > coalesce(@feed_epoch, '')) w LIMIT $2));

-- ================================================================================================= a wrong clock
-- Times up to $2 are right: that is a minute from now, as the caller has asked the store.

-- part: run_written_at
-- The latest time at which something of a live run `r` was written.
greatest(r.created_at, r.started_at, r.dispatched_at, r.pushed_at, r.taken_at, r.killed_at)

-- part: run_waits_in_vain
-- A live run `r` that was put back, or freed, at a time that has not come: by the earliest that is known ($3), or so late
-- that nothing waits for it ($4).
r.state IN ('waiting', 'blocked', 'parked') AND r.due_at > $2::bigint AND (
    (r.due_at >= $3::bigint AND (r.attempts > 0 OR r.losses > 0 OR r.fence IS NOT NULL
        OR (r.cause IN ('fire', 'trigger', 'rerun') AND r.schedule_id IS NOT NULL AND r.fire_at <= $2::bigint)))
    OR (r.due_at > $4::bigint AND (r.attempts > 0 OR r.losses > 0)))

-- name: clock.runs
-- Live runs with times that are still to come, though what they tell of has happened; or that wait for one in vain.
SELECT r.id::text AS id, CASE WHEN @run_written_at > $2::bigint THEN @run_written_at END AS at FROM evertick.runs r
WHERE r.app = $1 AND (@run_written_at > $2::bigint OR (@run_waits_in_vain)) LIMIT $5;

-- name: clock.history
-- Runs that began or ended at such a time: of late moments, or so long after theirs that an index has them.
SELECT h.id::text AS id, greatest(h.created_at, h.started_at, h.finished_at) AS at FROM evertick.history h
WHERE h.app = $1 AND (h.fire_at + 0) > $2::bigint - 172800000000
    AND greatest(h.created_at, h.started_at, h.finished_at) > $2::bigint
UNION
SELECT h.id::text, greatest(h.created_at, h.started_at, h.finished_at) FROM evertick.history h
WHERE h.app = $1 AND h.finished_at > $2::bigint AND h.finished_at >= h.fire_at + 86400000000
LIMIT $3;

-- name: clock.attempts
-- Attempts, the same.
SELECT run::text AS run, fence, greatest(started_at, finished_at) AS at FROM evertick.attempts
WHERE app = $1 AND greatest(started_at, finished_at) > $2::bigint LIMIT $3;

-- name: clock.gaps
-- Gaps that were recorded at such a time.
SELECT id, schedule_id, schedule_key, first_at, last_at, recorded_at AS at FROM evertick.gaps
WHERE app = $1 AND recorded_at > $2::bigint LIMIT $3;

-- name: clock.keys
-- Keys that are unique for a period, of runs that were made at such a time.
SELECT u.key, coalesce(r.created_at, h.created_at) AS at FROM evertick.unique_keys u
LEFT JOIN evertick.runs r ON r.id = u.run
LEFT JOIN evertick.history h ON h.id = u.run AND h.fire_at = u.fire_at
WHERE u.app = $1 AND u.until > $2::bigint AND coalesce(r.created_at, h.created_at) > $2::bigint LIMIT $3;

-- name: clock.messages
-- Messages, like runs.
SELECT m.id::text AS id,
    CASE WHEN greatest(m.created_at, m.claimed_at, m.settled_at) > $2::bigint
        THEN greatest(m.created_at, m.claimed_at, m.settled_at) END AS at
FROM evertick.outbox m
WHERE m.app = $1 AND (greatest(m.created_at, m.claimed_at, m.settled_at) > $2::bigint
    OR (m.state = 'waiting' AND m.due_at > $2::bigint AND (
        (m.due_at >= $3::bigint AND (m.attempts > 0 OR m.fence IS NOT NULL))
        OR (m.due_at > $4::bigint AND m.attempts > 0)))) LIMIT $5;

-- name: clock.nodes
-- Nodes that began, beat or ended at such a time.
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
-- Schedules that were made at such a time.
SELECT id, created_at AS at FROM evertick.schedules WHERE app = $1 AND created_at > $2::bigint LIMIT $3;

-- name: clock.lock_runs
-- In the order in which all lock them.
SELECT r.id::text AS id FROM evertick.runs r WHERE r.app = $1 AND r.id = ANY($2::uuid[]) ORDER BY r.id FOR UPDATE;

-- name: clock.mend_runs
-- What waits is due now; what was never tried, after the delay that it was given. Their owners and their fences stay. What hangs on a run
-- has its moment.
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
-- As long as they were to be kept, from now on.
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
-- What took some time keeps its length; it ended now at the latest. A run that was made for a moment that has not come
-- stands for that moment no more, and what hangs on it goes to its new day.
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
-- Runs and fences, each in the order of the other.
UPDATE evertick.attempts a
SET started_at = CASE WHEN a.started_at > $5::bigint THEN $4::bigint ELSE a.started_at END, finished_at = least(a.finished_at, $4::bigint)
FROM unnest($2::uuid[], $3::bigint[]) AS w(run, fence)
WHERE a.app = $1 AND a.run = w.run AND a.fence = w.fence;

-- name: clock.mend_gap
-- Up to the last of its moments that has come.
UPDATE evertick.gaps SET last_at = $3, count = $4, is_exact = $5, reason = 'clock', recorded_at = $6
WHERE app = $1 AND id = $2 AND recorded_at > $7;

-- name: clock.drop_gap
-- None of its moments has come.
DELETE FROM evertick.gaps WHERE app = $1 AND id = $2 AND recorded_at > $3;

-- name: clock.mend_nodes
-- A lease from now on, at most; a live node extends it with its next heartbeat.
UPDATE evertick.nodes
SET started_at = least(started_at, $3::bigint), beat_at = least(beat_at, $3::bigint), lease_until = least(lease_until, $3::bigint + lease),
    died_at = CASE WHEN died_at > $3::bigint THEN $3::bigint ELSE died_at END
WHERE app = $1 AND id = ANY($2::text[]);

-- name: clock.mend_duties
-- The next act as long after the last one as it was to be.
UPDATE evertick.duties
SET next_at = CASE WHEN ticked_at > $4::bigint AND next_at > ticked_at THEN $3::bigint + next_at - ticked_at
        WHEN next_at > $4::bigint AND ticked_at > $4::bigint THEN $3::bigint ELSE next_at END,
    since = least(since, $3::bigint), ticked_at = CASE WHEN ticked_at > $3::bigint THEN $3::bigint ELSE ticked_at END
WHERE app = $1 AND name = ANY($2::text[]);

-- name: clock.mend_events
-- Else the feed would keep them for as long as the clock was ahead.
UPDATE evertick.feed SET at = $3::bigint WHERE app = $1 AND seq = ANY($2::bigint[]);

-- name: clock.mend_schedules
-- What they count from was put right before.
UPDATE evertick.schedules SET created_at = $3::bigint WHERE app = $1 AND id = ANY($2::bigint[]);
