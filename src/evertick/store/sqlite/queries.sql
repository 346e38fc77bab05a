-- The statements of the SQLite store. A block is named after the intent that uses it, with a word for its part if the
-- intent has several; a block of several intents is named after its effect. Parameters are numbered. `@name` in a
-- statement is replaced by the part of that name.
--
-- Work on many rows is one statement that takes one JSON text and returns one JSON text: after every single row, the
-- writer thread would have to wait for the interpreter lock again.
--
-- INDEXED BY is used where SQLite would choose wrongly. Without statistics it assumes that any equality leaves about
-- ten rows, so that "all runs of the app" looks as good as "the running runs of this node". ANALYZE is no option,
-- because the file may hold tables of other programs.

-- ================================================================================================= shared

-- name: fence.draw
-- Once per claiming transaction, and only if something is claimed.
UPDATE evertick_fence SET value = value + 1 WHERE id = 1 RETURNING value;

-- name: node.is_alive
-- A node is dead when its death is recorded; an expired lease alone is not a death.
SELECT 1 FROM evertick_nodes WHERE id = ?1 AND died_at IS NULL;

-- part: into_history
-- The columns of an ended run, in the order in which the statements that end a run give them.
INSERT INTO evertick_history (app, id, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority,
    args, labels, expires, unique_until, caused_by, traceparent, losses, node, fence, created_at, started_at, deadline,
    at_most_once, is_cancel_requested, cancel_reason, task_hash, progress, progress_text, format, dispatch,
    state, verdict, reason, error, result, phases, attempts, finished_at, limit_key)

-- part: of_run
-- The columns that an end does not change; the unique key and the block are dropped. A dispatched run began when a
-- worker took it, or at the nearest known time before that.
SELECT r.app, r.id, r.schedule_id, r.schedule_key, r.version, r.task, r.cause, r.fire_at, r.due_at, r.queue, r.priority,
    r.args, r.labels, r.expires, r.unique_until, r.caused_by, r.traceparent, r.losses, r.node, r.fence, r.created_at,
    coalesce(r.started_at, r.taken_at, r.pushed_at, r.dispatched_at), r.deadline, r.at_most_once, r.is_cancel_requested,
    r.cancel_reason, r.task_hash, r.progress, r.progress_text, r.format, r.dispatch

-- name: run.end
-- End live runs without a claim. The error of an earlier attempt is kept. Second line of defence: a moment that history
-- has already is not written twice.
@into_history
@of_run,
    'done', ?3, coalesce(?4, r.reason), r.error, r.result, r.phases, r.attempts, ?5,
    CASE r.state WHEN 'blocked' THEN NULL ELSE r.limit_key END
FROM json_each(?2) e CROSS JOIN evertick_runs r ON r.app = ?1 AND r.id = e.value
WHERE true ON CONFLICT DO NOTHING;

-- name: run.ending
-- The schedules and limits that an end affects. A run that is blocked by a limit holds no place under it; a running run
-- and one that the limit has released do.
SELECT json_group_array(json_array(r.id, r.schedule_id, CASE r.state WHEN 'blocked' THEN NULL ELSE r.limit_key END))
FROM json_each(?2) e CROSS JOIN evertick_runs r ON r.app = ?1 AND r.id = e.value;

-- name: run.leave_line
-- Before a blocked run ends: the run behind it in the line becomes blocked on the run before it.
UPDATE evertick_runs AS behind INDEXED BY evertick_runs_blocked
SET blocked_on = leaving.blocked_on
FROM (SELECT schedule_id, blocked_on FROM evertick_runs
    WHERE app = ?1 AND id = ?2 AND state = 'blocked' AND schedule_id IS NOT NULL AND blocked_on IS NOT NULL) AS leaving
WHERE behind.state = 'blocked' AND behind.app = ?1 AND behind.schedule_id = leaving.schedule_id
    AND behind.blocked_on = ?2;

-- name: run.forget
-- Out of the live table.
DELETE FROM evertick_runs WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: run.unblock
-- A run blocked on an ended run becomes due now, or later by its own jitter.
UPDATE evertick_runs SET state = 'waiting', blocked_on = NULL, due_at = max(due_at, ?3)
WHERE app = ?1 AND id IN (
    SELECT b.id FROM json_each(?2) ended CROSS JOIN evertick_runs b INDEXED BY evertick_runs_blocked
        ON b.state = 'blocked' AND b.app = ?1 AND b.schedule_id = ended.value AND b.blocked_on = ended.key);

-- name: schedule.key
-- The key of a schedule, for users.
SELECT key FROM evertick_schedules WHERE id = ?1;

-- name: schedule.count_from_end
-- Cursor of an after-end rule: none while a run is live, otherwise that long after now.
UPDATE evertick_due
SET (fire_at, at) = (
    SELECT next, next FROM (SELECT CASE WHEN EXISTS (
        SELECT 1 FROM evertick_runs r WHERE r.schedule_id = evertick_due.schedule_id) THEN NULL
        ELSE ?2 + evertick_due.after_end END AS next))
WHERE schedule_id IN (SELECT value FROM json_each(?1)) AND after_end IS NOT NULL
    AND EXISTS (SELECT 1 FROM evertick_schedules s WHERE s.id = evertick_due.schedule_id AND s.pause IS NULL);

-- ================================================================================================= within

-- name: within.lock
-- Takes the write lock without a change. First, because a transaction that has read may be unable to write later.
DELETE FROM main.evertick_meta WHERE 0;

-- name: within.store_id
-- The store of a connection.
SELECT store_id FROM main.evertick_meta;

-- ================================================================================================= schedules

-- part: live
-- Live runs of the schedule with cursor `d`, for overlap: bit 0: there is one; bit 1: one is blocked on another run;
-- bit 2: all are parked or blocked on another run.
EXISTS (SELECT 1 FROM evertick_runs r WHERE r.schedule_id = d.schedule_id)
+ 2 * EXISTS (SELECT 1 FROM evertick_runs r INDEXED BY evertick_runs_blocked
    WHERE r.state = 'blocked' AND r.app = d.app AND r.schedule_id = d.schedule_id
        AND r.blocked_on IS NOT NULL)
+ 4 * (EXISTS (SELECT 1 FROM evertick_runs r WHERE r.schedule_id = d.schedule_id) AND NOT EXISTS (
    SELECT 1 FROM evertick_runs r WHERE r.schedule_id = d.schedule_id
        AND r.state <> 'parked' AND NOT (r.state = 'blocked' AND r.blocked_on IS NOT NULL)))

-- part: stored_schedule
-- Definition and cursor of a schedule, from `s` and `d`.
SELECT s.id, s.key, d.version, s.created_at, s.definition, s.pause, s.occurrences, s.declared, d.fire_at, d.at,
    d.fires, d.failures, d.error, d.fingerprint, @live AS live, NULL AS stamp

-- name: due_schedules
-- Longest due first, from a place in this order: all inputs of a plan.
SELECT json_group_array(json_array(d.schedule_id, s.key, d.version, s.created_at, s.definition, s.pause, s.occurrences,
    d.fire_at, d.at, d.fires, d.failures, @live, NULL))
FROM (
    SELECT * FROM evertick_due
    WHERE app = ?1 AND at <= ?2 AND format <= ?3 AND (at, schedule_id) > (?5, ?6)
    ORDER BY at, schedule_id LIMIT ?4) d
CROSS JOIN evertick_schedules s NOT INDEXED ON s.id = d.schedule_id;

-- name: due_schedules.next
-- When the next schedule is due.
SELECT at FROM evertick_due WHERE app = ?1 AND at > ?2 AND format <= ?3 ORDER BY at LIMIT 1;

-- name: stored_schedules.by_ids
-- Newer formats are left to newer nodes. CROSS JOIN fixes the order: from the ids to the tables.
@stored_schedule
FROM json_each(?2) wanted
CROSS JOIN evertick_schedules s NOT INDEXED ON s.id = wanted.value
CROSS JOIN evertick_due d ON d.schedule_id = s.id
WHERE s.app = ?1 AND s.format <= ?3;

-- name: stored_schedules.by_keys
-- The same by key.
@stored_schedule
FROM json_each(?2) wanted
CROSS JOIN evertick_schedules s ON s.app = ?1 AND s.key = wanted.value
CROSS JOIN evertick_due d ON d.schedule_id = s.id
WHERE s.format <= ?3;

-- name: fingerprints
-- Once per start of a node: few values, so scans of the narrow table are enough. GROUP BY would sort every row first:
-- with a million schedules that takes 63 MB, which the process does not return.
SELECT k.fingerprint, (
    SELECT d.schedule_id FROM evertick_due d
    WHERE d.app = ?1 AND d.fingerprint = k.fingerprint AND d.format <= ?2 LIMIT 1) AS id
FROM (SELECT DISTINCT fingerprint FROM evertick_due WHERE app = ?1 AND fingerprint <> '' AND format <= ?2) k;

-- name: computed_with
-- Schedules whose cursor was computed with one fingerprint, page by page.
@stored_schedule
FROM evertick_due d CROSS JOIN evertick_schedules s ON s.id = d.schedule_id
WHERE d.app = ?1 AND d.fingerprint = ?2 AND d.schedule_id > ?3 AND d.format <= ?4
ORDER BY d.schedule_id LIMIT ?5;

-- name: declared_schedules
-- All schedules that are or were declared.
@stored_schedule
FROM evertick_schedules s JOIN evertick_due d ON d.schedule_id = s.id
WHERE s.app = ?1 AND s.declared IS NOT NULL AND s.format <= ?2
ORDER BY s.key;

-- name: record_fires.fitting
-- The guard of the plans ?2: version, cursor and live runs must be those from which the plan was made. Also whether the
-- app has a feed.
SELECT json_group_array(d.schedule_id), EXISTS (SELECT 1 FROM evertick_feeds WHERE app = ?1)
FROM json_each(?2) plan CROSS JOIN evertick_due d ON d.schedule_id = json_extract(plan.value, '$[0]')
WHERE d.app = ?1 AND d.version = json_extract(plan.value, '$[1]') AND d.fire_at IS json_extract(plan.value, '$[2]')
    AND d.at IS json_extract(plan.value, '$[3]')
    AND (json_extract(plan.value, '$[4]') IS NULL OR json_extract(plan.value, '$[4]') = (
        @live));

-- name: record_fires.advance
-- New cursors: an object of schedule id to [next moment, next time to plan].
UPDATE evertick_due
SET version = version + ?2, fire_at = json_extract(moved.value, '$[0]'), at = json_extract(moved.value, '$[1]'),
    after_end = ?3, fires = fires + ?4, fingerprint = CASE ?5 WHEN '' THEN fingerprint ELSE ?5 END, failures = 0, error = NULL
FROM json_each(?1) moved WHERE schedule_id = CAST(moved.key AS INTEGER);

-- name: record_fires.decide
-- The overrides that are left; NULL for none.
UPDATE evertick_schedules SET occurrences = ?2 WHERE id = ?1;

-- name: record_fires.fail
-- A failed plan only moves the time of the next one.
UPDATE evertick_due SET at = ?3, failures = failures + 1, error = ?4
WHERE schedule_id = ?1 AND app = ?2 AND version = ?5 AND fire_at IS ?6 AND at IS ?7;

-- name: record_fires.count_back
-- Subtract a fire whose run was recorded already.
UPDATE evertick_due SET fires = fires - 1 WHERE schedule_id = ?1;

-- name: record_fires.gaps
-- Moments without a run: rows of schedule, first, last, count, is_exact, verdict, reason.
INSERT INTO evertick_gaps (app, schedule_id, schedule_key, first_at, last_at, count, is_exact, verdict, reason, recorded_at)
SELECT ?1, s.id, s.key, json_extract(gap.value, '$[1]'), json_extract(gap.value, '$[2]'), json_extract(gap.value, '$[3]'),
    json_extract(gap.value, '$[4]'), json_extract(gap.value, '$[5]'), json_extract(gap.value, '$[6]'), ?3
FROM json_each(?2) gap CROSS JOIN evertick_schedules s ON s.id = json_extract(gap.value, '$[0]')
RETURNING id;

-- name: record_fires.last_in_line
-- The run that a blocked run waits for: one that no other run is blocked on; otherwise two would start when it ends.
SELECT id FROM evertick_runs r WHERE schedule_id = ?1 AND NOT EXISTS (
    SELECT 1 FROM evertick_runs b INDEXED BY evertick_runs_blocked
    WHERE b.state = 'blocked' AND b.app = ?2 AND b.schedule_id = ?1 AND b.blocked_on = r.id)
ORDER BY fire_at DESC, id DESC LIMIT 1;

-- name: record_fires.find_early
-- An early run that is not running and has no judged or lost attempt.
SELECT 1 FROM evertick_runs
WHERE app = ?1 AND id = ?2 AND schedule_id = ?3 AND cause = 'fire' AND state IN ('waiting', 'blocked', 'parked')
    AND attempts = 0 AND losses = 0;

-- name: record_fires.give_moment_back
-- Detach it from its moment.
UPDATE evertick_runs SET cause = 'trigger' WHERE app = ?1 AND id = ?2;

-- name: record_fires.give_key_back
-- Release its key for a period, because the run of that moment has the same one.
DELETE FROM evertick_unique
WHERE app = ?1 AND run = ?2 AND key = (SELECT json_extract(definition, '$.unique') FROM evertick_schedules WHERE id = ?3);

-- name: record_fires.ask_to_cancel
-- Overlap "replace": the owner sees the request with its next heartbeat. A dispatched run becomes due for a check.
UPDATE evertick_runs SET is_cancel_requested = 1, cancel_reason = ?2,
    deadline = CASE state WHEN 'dispatched' THEN ?3 ELSE deadline END
WHERE schedule_id = ?1 AND state IN ('running', 'dispatched') AND is_cancel_requested = 0;

-- name: schedule.idle_runs
-- Live runs that no node holds; a replace or remove ends them at once.
SELECT id FROM evertick_runs WHERE schedule_id = ?1 AND state IN ('waiting', 'blocked', 'parked') ORDER BY fire_at, id;

-- name: change_schedules.give_up_untaken
-- A removed schedule: request the cancel of dispatched runs that no worker has taken.
UPDATE evertick_runs SET is_cancel_requested = 1, cancel_reason = ?2, deadline = ?3
WHERE schedule_id = ?1 AND state = 'dispatched' AND taken_at IS NULL AND is_cancel_requested = 0;

-- name: record_fires.run
-- Runs with equal options: an object of id to [schedule, version, moment, due time, arguments]. Leaves out those whose
-- id or moment the ledger has already.
INSERT INTO evertick_runs (app, id, schedule_id, schedule_key, version, fire_at, due_at, args, task, cause, queue, priority,
    state, reason, labels, expires, unique_key, unique_until, caused_by, traceparent, created_at, node, fence, started_at,
    deadline, at_most_once, blocked_on, format)
SELECT ?1, n.key, n.schedule_id, (SELECT key FROM evertick_schedules s WHERE s.id = n.schedule_id), n.version, n.fire_at,
    n.due_at, n.args, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22
FROM (SELECT key, json_extract(value, '$[0]') AS schedule_id, json_extract(value, '$[1]') AS version,
        json_extract(value, '$[2]') AS fire_at, json_extract(value, '$[3]') AS due_at, json_extract(value, '$[4]') AS args
    FROM json_each(?2)) n
WHERE NOT EXISTS (SELECT 1 FROM evertick_history h WHERE h.app = ?1 AND h.id = n.key)
    AND (n.schedule_id IS NULL OR ?4 NOT IN ('fire', 'backfill') OR NOT EXISTS (
        SELECT 1 FROM evertick_history h
        WHERE h.schedule_id = n.schedule_id AND h.fire_at = n.fire_at AND h.cause IN ('fire', 'backfill')))
ON CONFLICT DO NOTHING;

-- name: change_schedules.add
-- A key that is taken is no error: the caller reads and tries again.
INSERT INTO evertick_schedules (app, key, created_at, format, definition, pause, declared)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING RETURNING id;

-- name: change_schedules.add_due
-- Version 1 and the first cursor.
INSERT INTO evertick_due (schedule_id, app, version, format, fire_at, at, fingerprint) VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6);

-- name: change_schedules.keep_version
-- Runs refer to the definition under which they were recorded.
INSERT INTO evertick_schedule_versions (app, key, schedule_id, version, definition, args)
SELECT ?1, ?2, ?3, version, ?4, ?5 FROM evertick_due WHERE schedule_id = ?3 ON CONFLICT DO NOTHING;

-- name: change_schedules.find
-- The guard has an id, the user gave a key: both must name the same schedule.
SELECT definition FROM evertick_schedules WHERE app = ?1 AND key = ?2 AND id = ?3;

-- name: change_schedules.define
-- A new definition.
UPDATE evertick_schedules SET definition = ?2, format = ?3 WHERE id = ?1;

-- name: change_schedules.define_due
-- The tick filters by format without reading definitions.
UPDATE evertick_due SET format = ?2 WHERE schedule_id = ?1;

-- name: change_schedules.declare
-- The declaration that the schedule is written from.
UPDATE evertick_schedules SET declared = ?2 WHERE id = ?1;

-- name: change_schedules.pause
-- NULL ends the pause.
UPDATE evertick_schedules SET pause = ?2 WHERE id = ?1;

-- name: change_schedules.remove
-- History and old versions stay.
DELETE FROM evertick_schedules WHERE id = ?1;

-- name: change_schedules.remove_due
-- Its cursor.
DELETE FROM evertick_due WHERE schedule_id = ?1;

-- name: schedules
-- For display, by key; a filter that is NULL matches all.
@stored_schedule
FROM evertick_schedules s JOIN evertick_due d ON d.schedule_id = s.id
WHERE s.app = ?1 AND s.key > ?2 AND s.format <= ?3
    AND (?4 IS NULL OR s.key IN (SELECT value FROM json_each(?4)))
    AND (?5 IS NULL OR (s.pause IS NOT NULL) = ?5)
    AND NOT EXISTS (
        SELECT 1 FROM json_each(?6) wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(s.definition, '$.labels') label
            WHERE label.key = wanted.key AND label.value = wanted.value))
ORDER BY s.key LIMIT ?7;

-- name: schedules.by_due
-- The same in the order of the tick, by its index, so that only the returned rows are read.
@stored_schedule
FROM evertick_due d INDEXED BY evertick_due_at CROSS JOIN evertick_schedules s ON s.id = d.schedule_id
WHERE d.app = ?1 AND d.at IS NOT NULL AND s.key > ?2 AND s.format <= ?3
    AND (?4 IS NULL OR s.key IN (SELECT value FROM json_each(?4)))
    AND (?5 IS NULL OR (s.pause IS NOT NULL) = ?5)
    AND NOT EXISTS (
        SELECT 1 FROM json_each(?6) wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(s.definition, '$.labels') label
            WHERE label.key = wanted.key AND label.value = wanted.value))
ORDER BY d.at LIMIT ?7;

-- name: schedules.last_run
-- The run with the newest moment, live or done.
SELECT * FROM (
    SELECT * FROM (SELECT id, fire_at, state, verdict, coalesce(parked_for, reason) AS reason FROM evertick_runs
        WHERE schedule_id = ?1 ORDER BY fire_at DESC, id DESC LIMIT 1)
    UNION ALL
    SELECT * FROM (SELECT id, fire_at, state, verdict, reason FROM evertick_history
        WHERE schedule_id = ?1 ORDER BY fire_at DESC, id DESC LIMIT 1))
ORDER BY fire_at DESC, id DESC LIMIT 1;

-- name: schedules.counts
-- Finished runs by verdict, as long as history is kept.
SELECT verdict, count(*) AS count FROM evertick_history WHERE schedule_id = ?1 GROUP BY verdict;

-- name: change_schedules.count_failures_anew
-- Failures before a changed definition, or before the end of a pause, do not count for pause_after.
UPDATE evertick_due SET counts_from = version WHERE schedule_id = ?1;

-- name: failing.of
-- After failed verdicts: those of these schedules that have pause_after.
SELECT s.id, s.key, d.version, d.counts_from, json_extract(s.definition, '$.pause_after') AS pause_after
FROM json_each(?2) wanted
CROSS JOIN evertick_schedules s NOT INDEXED ON s.id = wanted.value
CROSS JOIN evertick_due d ON d.schedule_id = s.id
WHERE s.app = ?1 AND s.format <= ?3 AND s.pause IS NULL AND json_extract(s.definition, '$.pause_after') IS NOT NULL;

-- name: failing.all
-- At the start of a node, for failures that a dead node did not handle. Other schedules cost nothing: a partial index.
SELECT s.id, s.key, d.version, d.counts_from, json_extract(s.definition, '$.pause_after') AS pause_after
FROM evertick_schedules s INDEXED BY evertick_schedules_pause_after
CROSS JOIN evertick_due d ON d.schedule_id = s.id
WHERE s.app = ?1 AND s.format <= ?2 AND s.pause IS NULL AND json_extract(s.definition, '$.pause_after') IS NOT NULL;

-- name: failing.verdicts
-- The newest counted fires, newest first; the reader stops at the first success.
SELECT id, verdict, reason, error FROM evertick_history INDEXED BY evertick_history_moment
WHERE schedule_id = ?1 AND cause = 'fire' AND version >= ?2 AND verdict IN ('succeeded', 'failed', 'lost')
ORDER BY fire_at DESC LIMIT ?3;

-- name: calendar_users
-- A scan, for operators. In the rule the name is followed by an option or by the end; a blackout is the name.
SELECT key FROM evertick_schedules
WHERE app = ?1 AND (
    instr(json_extract(definition, '$.when') || ';', '; calendar=' || ?2 || ';') > 0
    OR json_extract(definition, '$.blackout') = ?2)
ORDER BY key LIMIT ?3;

-- name: remove_calendar
-- All of its versions.
DELETE FROM evertick_calendars WHERE app = ?1 AND name = ?2;

-- name: calendars
-- The newest version of each name.
SELECT name, content FROM evertick_calendars
WHERE id IN (SELECT max(id) FROM evertick_calendars WHERE app = ?1 GROUP BY name) ORDER BY name;

-- name: put_calendar.newest
-- Equal content changes nothing.
SELECT content FROM evertick_calendars WHERE app = ?1 AND name = ?2 ORDER BY id DESC LIMIT 1;

-- name: put_calendar.forget
-- Delete an earlier copy of this version, so that it becomes the newest again.
DELETE FROM evertick_calendars WHERE app = ?1 AND name = ?2 AND version = ?3;

-- name: put_calendar
-- As the newest version.
INSERT INTO evertick_calendars (app, name, version, content, put_at) VALUES (?1, ?2, ?3, ?4, ?5);

-- ================================================================================================= runs

-- name: enqueue.find_unique
-- The live run that holds the key.
SELECT id FROM evertick_runs WHERE app = ?1 AND unique_key = ?2;

-- name: enqueue.find_unique_for
-- The run that holds the key for a period, live or done, if the ledger still has it.
SELECT u.run AS id FROM evertick_unique u
WHERE u.app = ?1 AND u.key = ?2 AND u.until > ?3
    AND (EXISTS (SELECT 1 FROM evertick_runs r WHERE r.app = ?1 AND r.id = u.run)
        OR EXISTS (SELECT 1 FROM evertick_history h WHERE h.app = ?1 AND h.id = u.run));

-- name: enqueue.keep_unique_for
-- From the insertion, by the store's time. Replaces a holder whose period is over.
INSERT INTO evertick_unique (app, key, run, until) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (app, key) DO UPDATE SET run = excluded.run, until = excluded.until;

-- name: enqueue.find_moment
-- The run of a moment, live or done.
SELECT id FROM evertick_runs WHERE schedule_id = ?1 AND fire_at = ?2 AND cause IN ('fire', 'backfill')
UNION ALL
SELECT id FROM evertick_history WHERE schedule_id = ?1 AND fire_at = ?2 AND cause IN ('fire', 'backfill');

-- name: claim.node
-- A row if the node is alive, with the limit key from which it must check blocked runs again.
SELECT looked_at FROM evertick_nodes WHERE id = ?1 AND died_at IS NULL;

-- part: readable
-- Formats that this code can read; newer runs and messages are left to newer nodes.
format <= 1

-- name: claim.lanes
-- The queues and priorities in use, each with the earliest run that the node can run, due or not. One index search
-- each, so that future runs of a higher priority are not scanned.
WITH RECURSIVE lane (queue, priority) AS (
    SELECT value, 9223372036854775807 FROM json_each(?2)
    UNION ALL
    SELECT lane.queue, (
        SELECT max(r.priority) FROM evertick_runs r INDEXED BY evertick_runs_claim
        WHERE r.state = 'waiting' AND r.app = ?1 AND r.queue = lane.queue AND r.priority < lane.priority)
    FROM lane WHERE lane.priority IS NOT NULL)
SELECT json_group_array(json_array(queue, priority, due_at)) FROM (
    SELECT queue, priority, (
        SELECT r.due_at FROM evertick_runs r INDEXED BY evertick_runs_claim
        WHERE r.state = 'waiting' AND r.app = ?1 AND r.queue = lane.queue AND r.priority = lane.priority
            AND r.task IN (SELECT value FROM json_each(?3)) AND r.@readable
        ORDER BY r.due_at LIMIT 1) AS due_at
    FROM lane WHERE priority IS NOT NULL ORDER BY priority DESC);

-- name: claim.due
-- Due runs of one queue and priority whose task the node knows, from the index alone.
SELECT json_group_array(json_array(due_at, id)) FROM (
    SELECT due_at, id FROM evertick_runs INDEXED BY evertick_runs_claim
    WHERE state = 'waiting' AND app = ?1 AND queue = ?2 AND priority = ?3 AND due_at <= ?4
        AND task IN (SELECT value FROM json_each(?5)) AND @readable
    ORDER BY due_at LIMIT ?6);

-- name: claim.read
-- The columns for the owner. Arguments are the run's own, or those of the schedule version under which it was recorded.
SELECT json_group_array(json_array(r.id, r.task, r.fire_at, r.due_at, r.attempts, r.losses, r.schedule_id, r.schedule_key,
    r.cause, r.queue, r.priority, CASE WHEN json_valid(r.labels) THEN json(r.labels) ELSE r.labels END, r.traceparent,
    r.expires, r.limit_key, r.limit_key IS NOT NULL OR r.unique_until IS 'start', coalesce(r.args, (
        SELECT v.args FROM evertick_schedule_versions v
        WHERE v.app = r.app AND v.key = r.schedule_key AND v.schedule_id = r.schedule_id AND v.version <= r.version
        ORDER BY v.version DESC LIMIT 1))))
FROM json_each(?2) wanted CROSS JOIN evertick_runs r ON r.app = ?1 AND r.id = wanted.value;

-- name: claim.take
-- Start of an attempt; progress and phases of an earlier one are cleared.
UPDATE evertick_runs
SET state = 'running', node = ?3, fence = ?4, started_at = ?5, deadline = ?6, at_most_once = ?7,
    progress = NULL, progress_text = NULL, phases = NULL, task_hash = NULL
WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: claim.mark
-- For few runs: the limit key, and a unique key that lasts until the start. That key never returns, because a retry
-- that took it back could conflict with a run that has it by then.
UPDATE evertick_runs
SET limit_key = ?3, unique_key = CASE unique_until WHEN 'start' THEN NULL ELSE unique_key END
WHERE app = ?1 AND id = ?2;

-- name: finish.done
-- Runs that end with one verdict: an object of id to [reason, error, result, phases]. Without a reason in the outcome
-- the recorded one (late) stays. A moment that history has already is not written twice.
@into_history
@of_run,
    'done', ?3,
    coalesce(json_extract(o.value, '$[0]'), CASE WHEN ?3 = 'cancelled' THEN r.cancel_reason END, r.reason),
    json_extract(o.value, '$[1]'), json_extract(o.value, '$[2]'), coalesce(json_extract(o.value, '$[3]'), r.phases), ?4, ?5,
    r.limit_key
FROM json_each(?2) o CROSS JOIN evertick_runs r ON r.app = ?1 AND r.id = o.key
WHERE true ON CONFLICT DO NOTHING;

-- name: finish.held
-- The guard of every outcome, an object of id to fence: the runs that are still held by that claim, their cancel
-- requests, and what their end affects. Also whether the app has a feed.
SELECT json_group_array(json_array(r.id, r.schedule_id, r.limit_key, r.attempts, r.is_cancel_requested, r.cancel_reason)),
    EXISTS (SELECT 1 FROM evertick_feeds WHERE app = ?1)
FROM json_each(?2) o CROSS JOIN evertick_runs r ON r.app = ?1 AND r.id = o.key
WHERE r.state = 'running' AND r.node = ?3 AND r.fence = o.value;

-- part: not_dispatched
-- Clears the columns of a run that is no longer dispatched.
dispatch = NULL, dispatched_at = NULL, pushed_at = NULL, taken_at = NULL, killed_at = NULL

-- name: finish.keep_attempt
-- An earlier attempt, for display. It also identifies a repeated outcome after the next claim.
INSERT INTO evertick_attempts (app, run, number, fence, node, started_at, finished_at, error, reason, phases)
SELECT app, id, ?3, fence, node, coalesce(started_at, taken_at, pushed_at, dispatched_at), ?4, ?5, ?6, coalesce(?7, phases)
FROM evertick_runs WHERE app = ?1 AND id = ?2
ON CONFLICT DO NOTHING;

-- name: keep_cut_off
-- An attempt that was released or lost, if it had phases: those of the outcome, or those of its notes.
INSERT INTO evertick_attempts (app, run, number, fence, node, started_at, finished_at, reason, phases, is_lost)
SELECT app, id, attempts + 1, fence, node, started_at, ?3, ?4, coalesce(?5, phases), ?6
FROM evertick_runs WHERE app = ?1 AND id = ?2 AND fence IS NOT NULL AND coalesce(?5, phases) IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: finish.retry
-- The same row, due later. (node, fence) stay until the next claim, which must pass a limit again.
UPDATE evertick_runs
SET state = 'waiting', due_at = ?3, attempts = ?4, error = ?5, phases = coalesce(?6, phases), started_at = NULL, deadline = NULL,
    limit_key = NULL, @not_dispatched
WHERE app = ?1 AND id = ?2;

-- name: finish.release
-- No attempt is spent. `expires` counts from now, because the run had started in time.
UPDATE evertick_runs
SET state = 'waiting', due_at = ?3, phases = coalesce(?4, phases), started_at = NULL, deadline = NULL, limit_key = NULL,
    @not_dispatched
WHERE app = ?1 AND id = ?2;

-- name: finish.dispatch
-- An object of id to terms. The run has no node any more; (node, fence) stay for a repeated answer and for reports. It
-- still counts for its limit. It has no deadline until its message is delivered. The app is a column of the subquery,
-- and LIMIT keeps it there: with the app alone SQLite would scan all of its runs for each id.
UPDATE evertick_runs AS r
SET state = 'dispatched', dispatch = o.value, dispatched_at = ?3, pushed_at = NULL, taken_at = NULL, killed_at = NULL,
    started_at = NULL, deadline = NULL
FROM (SELECT ?1 AS app, key, value FROM json_each(?2) LIMIT -1) o WHERE r.app = o.app AND r.id = o.key;

-- name: finish.park
-- Leaves the claim index until a node joins that can run it. The recorded reason stays.
UPDATE evertick_runs
SET state = 'parked', parked_for = ?3, error = coalesce(?4, error), task_hash = ?5, started_at = NULL, deadline = NULL,
    limit_key = NULL
WHERE app = ?1 AND id = ?2;

-- name: finish.is_done_already
-- Whether this claim has ended the run, returned it, or spent an attempt on it.
SELECT EXISTS (SELECT 1 FROM evertick_history WHERE app = ?1 AND id = ?2 AND node = ?3 AND fence = ?4)
    OR EXISTS (SELECT 1 FROM evertick_runs
        WHERE app = ?1 AND id = ?2 AND node = ?3 AND fence = ?4 AND state <> 'running')
    OR EXISTS (SELECT 1 FROM evertick_attempts
        WHERE app = ?1 AND run = ?2 AND fence = ?4 AND node = ?3 AND is_lost = 0);

-- name: owned
-- Runs that a node holds.
SELECT json_group_array(json_object('id', id, 'fence', fence)) FROM (
    SELECT id, fence FROM evertick_runs INDEXED BY evertick_runs_running
    WHERE state = 'running' AND app = ?1 AND node = ?2 ORDER BY id);

-- name: cancel.find
-- Whether a run is live, done or unknown.
SELECT state FROM evertick_runs WHERE app = ?1 AND id = ?2
UNION ALL SELECT state FROM evertick_history WHERE app = ?1 AND id = ?2;

-- name: cancel.ask
-- The first reason stays. A dispatched run becomes due for a check.
UPDATE evertick_runs SET cancel_reason = CASE is_cancel_requested WHEN 1 THEN cancel_reason ELSE ?3 END,
    deadline = CASE WHEN state = 'dispatched' AND is_cancel_requested = 0 THEN ?4 ELSE deadline END, is_cancel_requested = 1
WHERE app = ?1 AND id = ?2;

-- name: note.progress
-- The latest values win. Also the guard of the log lines.
UPDATE evertick_runs SET progress = coalesce(?5, progress), progress_text = coalesce(?6, progress_text),
    phases = coalesce(?7, phases)
WHERE app = ?1 AND id = ?2 AND state = 'running' AND node = ?3 AND fence = ?4;

-- name: note.is_own_end
-- Whether this claim has ended the run as succeeded: a job that ended its own run may have log lines left.
SELECT 1 FROM evertick_history WHERE app = ?1 AND id = ?2 AND node = ?3 AND fence = ?4 AND verdict = 'succeeded';

-- name: note.lines
-- A repeated note replaces itself; the longer one has all lines of the shorter one.
INSERT INTO evertick_log_chunks (app, run, fence, seq, count, lines) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (app, run, fence, seq) DO UPDATE SET count = excluded.count, lines = excluded.lines
WHERE excluded.count > count;

-- name: runs.live
-- For display; `runs.py` adds the index and the filters.
SELECT r.*, (
    SELECT v.args FROM evertick_schedule_versions v
    WHERE v.app = r.app AND v.key = r.schedule_key AND v.schedule_id = r.schedule_id AND v.version <= r.version
    ORDER BY v.version DESC LIMIT 1) AS schedule_args
FROM evertick_runs r INDEXED BY {index} WHERE r.app = :app

-- name: runs.done
-- The same for history.
SELECT r.*, (
    SELECT v.args FROM evertick_schedule_versions v
    WHERE v.app = r.app AND v.key = r.schedule_key AND v.schedule_id = r.schedule_id AND v.version <= r.version
    ORDER BY v.version DESC LIMIT 1) AS schedule_args
FROM evertick_history r INDEXED BY {index} WHERE r.app = :app

-- name: runs.schedules_of_key
-- A key that was removed and added again names several schedules.
SELECT DISTINCT schedule_id FROM evertick_schedule_versions WHERE app = ?1 AND key = ?2;

-- name: recorded_moments
-- By the index that prevents a moment from being recorded twice.
SELECT fire_at FROM evertick_runs INDEXED BY evertick_runs_moment
WHERE schedule_id = ?1 AND fire_at BETWEEN ?2 AND ?3 AND cause IN ('fire', 'backfill', 'every-node') AND app = ?5
UNION
SELECT fire_at FROM evertick_history INDEXED BY evertick_history_moment
WHERE schedule_id = ?1 AND fire_at BETWEEN ?2 AND ?3 AND cause IN ('fire', 'backfill', 'every-node') AND app = ?5
ORDER BY fire_at LIMIT ?4;

-- name: gaps
-- Gaps that overlap a period, newest first.
SELECT * FROM evertick_gaps
WHERE app = ?1 AND last_at >= ?2 AND first_at <= ?3
    AND (?4 IS NULL OR verdict IN (SELECT value FROM json_each(?4)))
ORDER BY last_at DESC, id DESC LIMIT ?5;

-- name: gaps.of_key
-- The same for one schedule.
SELECT * FROM evertick_gaps
WHERE app = ?1 AND last_at >= ?2 AND first_at <= ?3
    AND (?4 IS NULL OR verdict IN (SELECT value FROM json_each(?4))) AND schedule_key = ?6
ORDER BY last_at DESC, id DESC LIMIT ?5;

-- name: attempts
-- Earlier attempts in order.
SELECT number, fence, node, started_at, finished_at, error, reason, phases FROM evertick_attempts
WHERE app = ?1 AND run = ?2 ORDER BY fence;

-- name: log
-- Log chunks in the order of the attempts.
SELECT fence, seq, count, lines FROM evertick_log_chunks WHERE app = ?1 AND run = ?2 ORDER BY fence, seq;

-- ================================================================================================= limits

-- name: limits.running
-- The count against a concurrency limit: a few entries of a partial index.
SELECT count(*) FROM evertick_runs INDEXED BY evertick_runs_limited
WHERE state IN ('running', 'dispatched') AND app = ?1 AND limit_key = ?2;

-- name: limits.hold_back
-- Out of the claim index until the key is free.
UPDATE evertick_runs SET state = 'blocked', limit_key = ?3 WHERE app = ?1 AND id = ?2;

-- name: limits.next_lane
-- The next lane (task and queue) with blocked runs of the key, by one index search each. A comparison of the pair
-- (task, queue) would scan the lanes before it.
SELECT task, queue FROM (
    SELECT task, queue FROM evertick_runs INDEXED BY evertick_runs_held_back
    WHERE state = 'blocked' AND app = ?1 AND limit_key = ?2 AND task = ?3 AND queue > ?4 ORDER BY queue LIMIT 1)
UNION ALL
SELECT task, queue FROM (
    SELECT task, queue FROM evertick_runs INDEXED BY evertick_runs_held_back
    WHERE state = 'blocked' AND app = ?1 AND limit_key = ?2 AND task > ?3 ORDER BY task, queue LIMIT 1)
LIMIT 1;

-- name: limits.is_let_through
-- Whether the limit has released a run of the lane already.
SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_let_through
WHERE state = 'waiting' AND app = ?1 AND limit_key = ?2 AND task = ?3 AND queue = ?4 LIMIT 1;

-- name: limits.let_through
-- Release the best runs of a lane; their key stays as a mark.
UPDATE evertick_runs SET state = 'waiting' WHERE app = ?1 AND id IN (
    SELECT id FROM evertick_runs INDEXED BY evertick_runs_held_back
    WHERE state = 'blocked' AND app = ?1 AND limit_key = ?2 AND task = ?3 AND queue = ?4
    ORDER BY priority DESC, due_at LIMIT ?5);

-- name: limits.next_key
-- The next key that has blocked runs, by one index search.
SELECT min(limit_key) FROM evertick_runs INDEXED BY evertick_runs_held_back
WHERE state = 'blocked' AND app = ?1 AND limit_key > ?2;

-- name: limits.starts
-- Starts of a rate within its period.
SELECT coalesce(sum(count), 0) FROM evertick_grants WHERE app = ?1 AND key = ?2 AND at > ?3;

-- name: limits.starts_in_order
-- The same in order: the first to leave the period come first.
SELECT at, count FROM evertick_grants WHERE app = ?1 AND key = ?2 AND at > ?3 ORDER BY at;

-- name: limits.take_out
-- To be written again as one row: starts that are merged with a new one, and starts at a time in the future.
DELETE FROM evertick_grants WHERE app = ?1 AND key = ?2 AND at >= ?3 RETURNING count;

-- name: limits.put
-- Starts at one moment, needed until the period is over.
INSERT INTO evertick_grants (app, key, at, count, until) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: limits.set_time
-- When to check a key again. The earliest time wins, because a check that is too early only costs a search.
INSERT INTO evertick_limits (app, key, free_at, set_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (app, key) DO UPDATE SET free_at = min(free_at, excluded.free_at), set_at = excluded.set_at;

-- name: limits.due
-- Keys whose time has come.
SELECT key FROM evertick_limits INDEXED BY evertick_limits_free
WHERE app = ?1 AND free_at <= ?2 ORDER BY free_at LIMIT ?3;

-- name: limits.time_of
-- When to check one key.
SELECT free_at, set_at FROM evertick_limits WHERE app = ?1 AND key = ?2;

-- name: limits.forget_time
-- The time has come.
DELETE FROM evertick_limits WHERE app = ?1 AND key = ?2;

-- name: limits.next_time
-- The next time of a limit of the app.
SELECT min(free_at) FROM evertick_limits INDEXED BY evertick_limits_free WHERE app = ?1;

-- name: limits.looked_up_to
-- From which key the next claim of the node continues; NULL: it has checked all.
UPDATE evertick_nodes SET looked_at = ?2 WHERE id = ?1;

-- name: limits.forget_terms
-- After a node has checked all blocked runs of its tasks: forget limits that only dead nodes had.
DELETE FROM evertick_held_under
WHERE app = ?1 AND task IN (SELECT name FROM evertick_tasks WHERE app = ?1 AND node = ?2)
    AND NOT EXISTS (SELECT 1 FROM evertick_tasks t
        WHERE t.app = ?1 AND t.name = evertick_held_under.task AND t.limits = evertick_held_under.limits);

-- ================================================================================================= nodes

-- name: join
-- A repeated join is a heartbeat that replaces what the node declares. A dead incarnation never returns.
INSERT INTO evertick_nodes (id, name, app, version, started_at, beat_at, lease, lease_until, queues, declares)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?5 + ?6, ?7, ?8)
ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, lease_until = excluded.lease_until,
    queues = excluded.queues, declares = excluded.declares WHERE died_at IS NULL;

-- name: join.look_again
-- Repeated join: runs that it blocked under limits that it no longer has may be released by other nodes, as after a
-- death.
UPDATE evertick_nodes SET looked_at = '' WHERE died_at IS NULL AND id <> ?1 AND id IN (
    SELECT living.node FROM evertick_tasks mine
    CROSS JOIN evertick_tasks living ON living.app = mine.app AND living.name = mine.name
    WHERE mine.node = ?1 AND mine.limits <> '' AND living.limits <> mine.limits
        AND (mine.name, mine.limits) NOT IN (SELECT new_tasks.key, new_tasks.value FROM json_each(?2) new_tasks));

-- name: join.forget
-- Repeated join: delete tasks that it no longer names. NOT IN reads the list once. NOT EXISTS read it for each task:
-- with 10,000 tasks that blocked the file, and every heartbeat, for seconds.
DELETE FROM evertick_tasks WHERE node = ?1 AND name NOT IN (SELECT new_tasks.key FROM json_each(?2) new_tasks);

-- name: join.is_known
-- Whether the join is repeated.
SELECT 1 FROM evertick_nodes WHERE id = ?1;

-- name: join.task
-- A task that it knows.
INSERT INTO evertick_tasks (app, name, node, hash, limits) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (app, name, node) DO UPDATE SET hash = excluded.hash, limits = excluded.limits;

-- name: join.may_hold_back
-- Remembered after the death of the node.
INSERT INTO evertick_held_under (app, task, limits) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: join.has_other_limits
-- Whether runs of the task may be blocked under limits that this node does not have.
SELECT 1 FROM evertick_held_under WHERE app = ?1 AND task = ?2 AND limits <> ?3 LIMIT 1;

-- name: join.unpark
-- Unpark runs that this node can run: it knows the task, or has another signature than the one that did not fit.
UPDATE evertick_runs INDEXED BY evertick_runs_parked SET state = 'waiting', parked_for = NULL, task_hash = NULL
WHERE state = 'parked' AND app = ?1 AND task = ?2
    AND (parked_for = 'unknown_task' OR (parked_for = 'bad_arguments' AND task_hash IS NOT ?3));

-- name: beat
-- Extend the lease from the store's now, unless the node is dead.
UPDATE evertick_nodes SET beat_at = ?2, lease = ?3, lease_until = ?2 + ?3, ticks = ?4
WHERE id = ?1 AND died_at IS NULL RETURNING app;

-- name: beat.cancels
-- Its running runs with a cancel request.
SELECT id FROM evertick_runs INDEXED BY evertick_runs_running
WHERE state = 'running' AND app = ?1 AND node = ?2 AND is_cancel_requested = 1 ORDER BY id;

-- name: beat.has_dispatched
-- Whether a dispatched run is overdue, and whether one of those has a cancel request.
SELECT EXISTS (SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_dispatched
        WHERE state = 'dispatched' AND app = ?1 AND deadline <= ?2) AS has_dispatched,
    EXISTS (SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_unwanted
        WHERE state = 'dispatched' AND is_cancel_requested = 1 AND app = ?1 AND deadline <= ?2) AS has_dispatched_cancels;

-- name: beat.has_free_duties
-- Whether a duty of the app is free.
SELECT EXISTS (SELECT 1 FROM evertick_duties d WHERE d.app = ?1 AND d.name <> ''
    AND NOT EXISTS (SELECT 1 FROM evertick_nodes k WHERE k.id = d.node AND k.died_at IS NULL)) AS has_free_duties;

-- name: beat.has_charges
-- Whether recovery may have work.
SELECT EXISTS (SELECT 1 FROM evertick_nodes WHERE died_at IS NULL AND (lease_until < ?2 OR beat_at > ?2 + lease))
    OR EXISTS (SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_running WHERE state = 'running' AND app = ?1)
    OR EXISTS (SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_bound
        WHERE queue >= '@' AND queue < 'A' AND app = ?1) AS has_charges;

-- name: die
-- Written once.
UPDATE evertick_nodes SET died_at = ?2 WHERE id = ?1 AND died_at IS NULL;

-- name: judge
-- Declare deaths; written once.
UPDATE evertick_nodes SET died_at = ?1 WHERE died_at IS NULL AND (lease_until < ?1 OR beat_at > ?1 + lease) RETURNING id;

-- name: die.look_again
-- Living nodes that know one of its limited tasks under other limits must check blocked runs again.
UPDATE evertick_nodes SET looked_at = '' WHERE died_at IS NULL AND id IN (
    SELECT living.node FROM evertick_tasks dead
    CROSS JOIN evertick_tasks living ON living.app = dead.app AND living.name = dead.name
    WHERE dead.node = ?1 AND dead.limits <> '' AND living.limits <> dead.limits);

-- name: die.forget_tasks
-- The tasks of a dead node.
DELETE FROM evertick_tasks WHERE node = ?1;

-- name: rehome.find
-- Running rows of dead or missing nodes, and rows of other nodes than the calling one (?4) that are long past their
-- deadline (?2; NULL: ignored).
SELECT r.id, r.task, r.queue, r.losses + 1 AS losses, r.at_most_once, r.is_cancel_requested, r.cancel_reason,
    r.limit_key, r.@readable AS is_readable, r.queue >= '@' AND r.queue < 'A' AND NOT EXISTS (
        SELECT 1 FROM evertick_nodes n WHERE n.id = substr(r.queue, 2) AND n.died_at IS NULL) AS is_left_alone
FROM evertick_runs r INDEXED BY evertick_runs_running
WHERE r.state = 'running' AND r.app = ?1
    AND ((r.deadline < ?2 AND r.node <> ?4) OR NOT EXISTS (SELECT 1 FROM evertick_nodes n WHERE n.id = r.node AND n.died_at IS NULL))
ORDER BY r.priority DESC, r.due_at, r.id LIMIT ?3;

-- name: rehome.bound
-- Runs in the own queue of a node that is dead or missing; no other node may get them. Its running rows are found
-- above; its dispatched runs continue.
SELECT r.id FROM evertick_runs r INDEXED BY evertick_runs_bound
WHERE r.queue >= '@' AND r.queue < 'A' AND r.app = ?1 AND r.state NOT IN ('running', 'dispatched')
    AND NOT EXISTS (SELECT 1 FROM evertick_nodes n WHERE n.id = substr(r.queue, 2) AND n.died_at IS NULL)
LIMIT ?2;

-- name: rehome.lose
-- A lost claim: its owner can write nothing any more, and does not get the answer "already".
UPDATE evertick_runs SET losses = ?3, fence = NULL WHERE app = ?1 AND id = ?2;

-- name: rehome.release
-- Back to waiting, due now, like a released run.
UPDATE evertick_runs
SET state = 'waiting', node = NULL, due_at = ?3, started_at = NULL, deadline = NULL, limit_key = NULL, @not_dispatched
WHERE app = ?1 AND id = ?2;

-- ================================================================================================= dispatched

-- name: apply_reports.dispatched
-- The guard of every report: those of these runs that are dispatched, with their fence.
SELECT json_group_array(json_object('id', id, 'fence', fence, 'attempts', attempts, 'at_most_once', at_most_once,
    'is_cancel_requested', is_cancel_requested, 'cancel_reason', cancel_reason, 'dispatch', dispatch, 'dispatched_at', dispatched_at,
    'pushed_at', pushed_at, 'taken_at', taken_at, 'killed_at', killed_at, 'deadline', deadline, 'schedule_id', schedule_id,
    'limit_key', limit_key))
FROM evertick_runs WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2)) AND state = 'dispatched';

-- name: apply_reports.progress
-- New times and progress, for runs with equal values.
UPDATE evertick_runs
SET pushed_at = ?3, taken_at = ?4, deadline = ?5, progress = coalesce(?6, progress),
    progress_text = coalesce(?7, progress_text),
    dispatch = CASE WHEN ?8 IS NOT NULL AND json_valid(dispatch) THEN json_set(dispatch, '$.worker', ?8) ELSE dispatch END
WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: apply_reports.last_lines
-- The number of the last log line of each dispatch, and the size of its log; pairs of run and fence.
SELECT run, fence, max(seq + count) AS last, sum(count) AS count, sum(length(CAST(lines AS BLOB))) AS size
FROM json_each(?2) w
CROSS JOIN evertick_log_chunks l
    ON l.app = ?1 AND l.run = json_extract(w.value, '$[0]') AND l.fence = json_extract(w.value, '$[1]')
GROUP BY run, fence;

-- name: apply_reports.answered_before
-- Which of these dispatches (pairs of run and fence) have ended or returned by a report.
SELECT json_extract(w.value, '$[0]') AS id, json_extract(w.value, '$[1]') AS fence FROM json_each(?2) w
WHERE EXISTS (SELECT 1 FROM evertick_history h
        WHERE h.app = ?1 AND h.id = json_extract(w.value, '$[0]') AND h.fence = json_extract(w.value, '$[1]'))
    OR EXISTS (SELECT 1 FROM evertick_runs r
        WHERE r.app = ?1 AND r.id = json_extract(w.value, '$[0]') AND r.fence = json_extract(w.value, '$[1]')
            AND r.state NOT IN ('running', 'dispatched'))
    OR EXISTS (SELECT 1 FROM evertick_attempts a
        WHERE a.app = ?1 AND a.run = json_extract(w.value, '$[0]') AND a.fence = json_extract(w.value, '$[1]')
            AND a.is_lost = 0);

-- part: checked_run
-- The columns of a dispatched run that is overdue.
id, fence, losses, at_most_once, is_cancel_requested, cancel_reason, dispatch, pushed_at, taken_at, killed_at, deadline,
limit_key

-- name: check_dispatched.find_cancelled
-- Cancel requests, longest overdue first.
SELECT @checked_run FROM evertick_runs INDEXED BY evertick_runs_unwanted
WHERE state = 'dispatched' AND is_cancel_requested = 1 AND app = ?1 AND deadline <= ?2 ORDER BY deadline LIMIT ?3;

-- name: check_dispatched.find_overdue
-- Overdue runs of channels whose reports were read (?4, by channel: until when), longest overdue first. Scans those of
-- other channels: they are many only while a queue is unreachable.
SELECT @checked_run FROM evertick_runs INDEXED BY evertick_runs_dispatched
WHERE state = 'dispatched' AND app = ?1 AND deadline <= ?2 AND is_cancel_requested = 0
    AND deadline <= (SELECT h.value FROM json_each(?4) h WHERE h.key = json_extract(dispatch, '$.to'))
ORDER BY deadline LIMIT ?3;

-- name: check_dispatched.postpone
-- Postpone a run whose reports were not read for its whole timeout.
UPDATE evertick_runs SET deadline = ?3 WHERE app = ?1 AND id = ?2;

-- name: check_dispatched.withdraw
-- Delete the message that dispatches a run to be cancelled, unless it is being sent.
DELETE FROM evertick_outbox WHERE app = ?1 AND channel = ?2 AND key = ?3 AND state IN ('waiting', 'dead');

-- name: check_dispatched.is_unsent
-- Whether the message of a run is no longer in the outbox.
SELECT NOT EXISTS (SELECT 1 FROM evertick_outbox WHERE app = ?1 AND channel = ?2 AND key = ?3) AS is_unsent;

-- name: check_dispatched.stopping
-- Its worker was asked to stop, and has until then.
UPDATE evertick_runs SET killed_at = ?3, deadline = ?4 WHERE app = ?1 AND id = ?2;

-- name: nodes
-- For display, oldest first.
SELECT n.*,
    (SELECT count(*) FROM evertick_runs r INDEXED BY evertick_runs_running
        WHERE r.state = 'running' AND r.app = n.app AND r.node = n.id) AS running,
    (SELECT json_group_array(name) FROM (
        SELECT name FROM evertick_tasks t WHERE t.app = n.app AND t.node = n.id ORDER BY name)) AS tasks
FROM evertick_nodes n WHERE n.app = ?1 ORDER BY n.started_at, n.id;

-- ================================================================================================= duties

-- part: duty
-- A duty `d` and its holder `n`, if that is alive.
d.name, n.id AS node, n.name AS node_name, d.term, d.since, d.ticked_at, d.next_at, d.error
FROM evertick_duties d LEFT JOIN evertick_nodes n ON n.id = d.node AND n.died_at IS NULL

-- name: duties
-- For display, by name.
SELECT @duty WHERE d.app = ?1 AND d.name <> '' ORDER BY d.name;

-- name: duties.named
-- For the nodes that declare them.
SELECT @duty WHERE d.app = ?1 AND d.name IN (SELECT value FROM json_each(?2)) ORDER BY d.name;

-- name: hold_duties.begin
-- Rows for duties that are new or were pruned.
INSERT INTO evertick_duties (app, name, term, since) SELECT ?1, value, 0, ?4 FROM json_each(?3)
WHERE EXISTS (SELECT 1 FROM evertick_nodes WHERE id = ?2 AND died_at IS NULL)
ON CONFLICT DO NOTHING;

-- name: hold_duties.take
-- Take duties that no living node holds, if this node is alive. The term of a new row continues above all pruned terms.
UPDATE evertick_duties SET node = ?2, since = ?4, term = 1 + CASE WHEN term > 0 THEN term ELSE coalesce(
    (SELECT old.term FROM evertick_duties old WHERE old.app = ?1 AND old.name = ''), 0) END
WHERE app = ?1 AND name IN (SELECT value FROM json_each(?3))
    AND NOT EXISTS (SELECT 1 FROM evertick_nodes holder WHERE holder.id = evertick_duties.node AND holder.died_at IS NULL)
    AND EXISTS (SELECT 1 FROM evertick_nodes me WHERE me.id = ?2 AND me.died_at IS NULL);

-- name: tick_duty
-- Only by its living holder.
UPDATE evertick_duties SET ticked_at = CASE WHEN ?5 THEN ?8 ELSE ticked_at END, next_at = ?6, error = ?7
WHERE app = ?1 AND name = ?2 AND node = ?3 AND term = ?4
    AND EXISTS (SELECT 1 FROM evertick_nodes me WHERE me.id = ?3 AND me.died_at IS NULL);

-- name: resign_duties
-- Only under the given term: a duty that was resigned and taken again has another one.
UPDATE evertick_duties SET node = NULL WHERE app = ?1 AND name = ?2 AND node = ?3 AND term = ?4;

-- name: resign
-- All duties of a node.
UPDATE evertick_duties SET node = NULL WHERE node = ?1;

-- ================================================================================================= upkeep

-- name: park_unknown
-- Due runs of tasks that no live node knows, from the claim index alone. Runs in a node's own queue are left to
-- recovery.
SELECT id, limit_key FROM evertick_runs INDEXED BY evertick_runs_claim
WHERE state = 'waiting' AND app = ?1 AND due_at <= ?2 AND NOT (queue >= '@' AND queue < 'A')
    AND task NOT IN (SELECT name FROM evertick_tasks WHERE app = ?1)
LIMIT ?3;

-- name: park_unknown.park
-- Out of the claim index.
UPDATE evertick_runs SET state = 'parked', parked_for = 'unknown_task', limit_key = NULL WHERE app = ?1 AND id = ?2;

-- name: park_unknown.known_again
-- Parked runs that a live node can run: it knows the task, or has another signature.
SELECT r.id FROM evertick_runs r INDEXED BY evertick_runs_parked
WHERE r.state = 'parked' AND r.app = ?1 AND (
    (r.parked_for = 'unknown_task' AND EXISTS (SELECT 1 FROM evertick_tasks t WHERE t.app = ?1 AND t.name = r.task))
    OR (r.parked_for = 'bad_arguments' AND EXISTS (
        SELECT 1 FROM evertick_tasks t WHERE t.app = ?1 AND t.name = r.task AND t.hash IS NOT r.task_hash)))
LIMIT ?2;

-- name: park_unknown.free
-- Back into the claim index.
UPDATE evertick_runs SET state = 'waiting', parked_for = NULL, task_hash = NULL WHERE app = ?1 AND id = ?2;

-- name: prune.old_runs
-- By the index on fire_at. Only a cancelled run ends before its moment; it stays until that moment has passed.
SELECT id FROM evertick_history WHERE app = ?1 AND fire_at < ?2 AND finished_at < ?2 ORDER BY fire_at LIMIT ?3;

-- name: prune.schedules
-- The next schedules to check, including removed ones.
SELECT DISTINCT key, schedule_id FROM evertick_schedule_versions
WHERE app = ?1 AND (key, schedule_id) > (?2, ?3) ORDER BY key, schedule_id LIMIT ?4;

-- name: prune.surplus_runs
-- All but the newest runs of one schedule.
SELECT id FROM evertick_history WHERE schedule_id = ?1 ORDER BY fire_at DESC, id DESC LIMIT ?3 OFFSET ?2;

-- name: prune.run
-- A run in history.
DELETE FROM evertick_history WHERE app = ?1 AND id = ?2;

-- name: prune.attempts
-- Its attempts.
DELETE FROM evertick_attempts WHERE app = ?1 AND run = ?2;

-- name: prune.log
-- Its log.
DELETE FROM evertick_log_chunks WHERE app = ?1 AND run = ?2;

-- name: prune.gaps
-- Gaps that ended before ?2.
DELETE FROM evertick_gaps WHERE id IN (SELECT id FROM evertick_gaps WHERE app = ?1 AND last_at < ?2 ORDER BY last_at LIMIT ?3);

-- name: prune.starts
-- Starts that no rate counts any more.
DELETE FROM evertick_grants WHERE (app, key, at) IN (
    SELECT app, key, at FROM evertick_grants WHERE app = ?1 AND until <= ?2 ORDER BY until LIMIT ?3);

-- name: prune.unique
-- Unique keys whose period is over.
DELETE FROM evertick_unique WHERE (app, key) IN (
    SELECT app, key FROM evertick_unique WHERE app = ?1 AND until <= ?2 ORDER BY until LIMIT ?3);

-- name: prune.nodes
-- Long dead nodes without runs left to recover.
DELETE FROM evertick_nodes WHERE id IN (
    SELECT n.id FROM evertick_nodes n WHERE n.app = ?1 AND n.died_at < ?2
        AND NOT EXISTS (SELECT 1 FROM evertick_runs r INDEXED BY evertick_runs_running
            WHERE r.state = 'running' AND r.app = ?1 AND r.node = n.id)
    LIMIT ?3);

-- name: prune.duties
-- Duties that were neither held nor done for long, and whose last holder was pruned.
DELETE FROM evertick_duties WHERE app = ?1 AND name IN (
    SELECT d.name FROM evertick_duties d
    WHERE d.app = ?1 AND d.name <> '' AND max(d.since, coalesce(d.ticked_at, 0)) < ?2
        AND NOT EXISTS (SELECT 1 FROM evertick_nodes n WHERE n.id = d.node)
    LIMIT ?3)
RETURNING term;

-- name: prune.duty_terms
-- The greatest pruned term.
INSERT INTO evertick_duties (app, name, term, since) VALUES (?1, '', ?2, ?3)
ON CONFLICT DO UPDATE SET term = max(term, excluded.term);

-- name: prune.finished_schedules
-- Finished one-shots: no cursor, not paused, not declared, no live run, no run in history.
SELECT s.id FROM evertick_due d JOIN evertick_schedules s ON s.id = d.schedule_id
WHERE d.app = ?1 AND d.fire_at IS NULL AND d.at IS NULL AND d.after_end IS NULL
    AND s.created_at < ?2 AND s.pause IS NULL AND s.declared IS NULL
    AND NOT EXISTS (SELECT 1 FROM evertick_runs r WHERE r.schedule_id = s.id)
    AND NOT EXISTS (SELECT 1 FROM evertick_history h WHERE h.schedule_id = s.id)
LIMIT ?3;

-- name: prune.versions
-- Definitions of a removed schedule that no run refers to.
DELETE FROM evertick_schedule_versions WHERE app = ?1 AND key = ?2 AND schedule_id = ?3
    AND NOT EXISTS (SELECT 1 FROM evertick_schedules s WHERE s.id = ?3)
    AND NOT EXISTS (SELECT 1 FROM evertick_runs r WHERE r.schedule_id = ?3)
    AND NOT EXISTS (SELECT 1 FROM evertick_history h WHERE h.schedule_id = ?3);

-- name: pulse.waiting
-- Counts stop at a bound, beyond which they tell a reader nothing.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_claim WHERE state = 'waiting' AND app = ?1 LIMIT ?2);

-- name: pulse.running
-- By its partial index.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_running WHERE state = 'running' AND app = ?1 LIMIT ?2);

-- name: pulse.parked
-- By its partial index.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_parked WHERE state = 'parked' AND app = ?1 LIMIT ?2);

-- name: pulse.blocked
-- By its partial index.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_blocked WHERE state = 'blocked' AND app = ?1 LIMIT ?2);

-- name: pulse.failed
-- The newest by their end, by the partial index of failed runs. A rerun that is live or was executed counts in place of
-- the run that it repeats.
SELECT coalesce(f.schedule_key, f.task) AS name, f.verdict, count(*) AS count FROM (
    SELECT id, schedule_key, task, verdict FROM evertick_history INDEXED BY evertick_history_failed
    WHERE verdict IN ('failed', 'lost') AND app = ?1 AND finished_at > ?2 AND fire_at > ?3
    ORDER BY finished_at DESC LIMIT ?4) f
WHERE NOT EXISTS (SELECT 1 FROM evertick_runs r INDEXED BY evertick_runs_reruns
        WHERE r.cause = 'rerun' AND r.app = ?1 AND r.caused_by = f.id)
    AND NOT EXISTS (SELECT 1 FROM evertick_history h INDEXED BY evertick_history_reruns
        WHERE h.cause = 'rerun' AND h.app = ?1 AND h.caused_by = f.id AND h.verdict IN ('succeeded', 'failed', 'lost'))
GROUP BY 1, 2 ORDER BY 3 DESC, 1;

-- name: pulse.dispatched
-- By its partial index.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_runs INDEXED BY evertick_runs_dispatched WHERE state = 'dispatched' AND app = ?1 LIMIT ?2);

-- name: pulse.schedules
-- From the unique index alone.
SELECT count(*) FROM evertick_schedules WHERE app = ?1;

-- name: pulse.next_queue
-- One index search per queue in use.
SELECT min(queue) FROM evertick_runs INDEXED BY evertick_runs_claim WHERE state = 'waiting' AND app = ?1 AND queue > ?2;

-- name: pulse.next_priority
-- One index search to the next lower priority in use.
SELECT max(priority) FROM evertick_runs INDEXED BY evertick_runs_claim
WHERE state = 'waiting' AND app = ?1 AND queue = ?2 AND priority < ?3;

-- name: pulse.oldest_due
-- One index search per queue and priority in use.
SELECT due_at FROM evertick_runs INDEXED BY evertick_runs_claim
WHERE state = 'waiting' AND app = ?1 AND queue = ?2 AND priority = ?3 ORDER BY due_at LIMIT 1;

-- name: apps.next
-- The next app by name, by one index search per large table; nodes are few.
SELECT min(app) AS app FROM (
    SELECT min(app) AS app FROM evertick_schedules WHERE app > ?1
    UNION ALL
    SELECT min(app) FROM evertick_runs WHERE app > ?1
    UNION ALL
    SELECT min(app) FROM evertick_history WHERE app > ?1
    UNION ALL
    SELECT min(app) FROM evertick_nodes WHERE app > ?1);

-- ================================================================================================= maintenance

-- name: maintenance.tables
-- The tables that exist, in any version of the store.
SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'evertick\_%' ESCAPE '\' ORDER BY name;

-- name: maintenance.objects
-- Tables and indexes as they were created, to compare with those of this code.
SELECT type, name, sql FROM sqlite_master WHERE tbl_name LIKE 'evertick\_%' ESCAPE '\' AND sql IS NOT NULL;

-- name: maintenance.rows
-- Counted up to a bound; `maintenance.py` adds the table.
SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?1)

-- name: maintenance.meta
-- Store id and schema version.
SELECT store_id, version FROM evertick_meta;

-- name: maintenance.next_app
-- One index search per app.
SELECT min(app) FROM evertick_history INDEXED BY evertick_history_time WHERE app > ?1;

-- name: maintenance.oldest
-- One index search for the oldest moment of an app.
SELECT min(fire_at) FROM evertick_history INDEXED BY evertick_history_time WHERE app = ?1;

-- name: maintenance.both
-- A run is live or done, never both.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_runs r JOIN evertick_history h ON h.app = r.app AND h.id = r.id LIMIT ?1);

-- name: maintenance.no_cursor
-- A schedule without its cursor never fires.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_schedules s
    WHERE NOT EXISTS (SELECT 1 FROM evertick_due d WHERE d.schedule_id = s.id) LIMIT ?1);

-- name: maintenance.no_schedule
-- A cursor without its schedule is read by every tick.
SELECT count(*) FROM (
    SELECT 1 FROM evertick_due d
    WHERE NOT EXISTS (SELECT 1 FROM evertick_schedules s WHERE s.id = d.schedule_id) LIMIT ?1);

-- ================================================================================================= outbox

-- name: send
-- Messages, except those whose id or key is known.
INSERT INTO evertick_outbox (app, id, channel, key, body, headers, state, due_at, created_at, caused_by, format, dispatches)
SELECT ?1, json_extract(m.value, '$[0]'), json_extract(m.value, '$[1]'), json_extract(m.value, '$[2]'),
    json_extract(m.value, '$[3]'), json_extract(m.value, '$[4]'), 'waiting', ?2 + json_extract(m.value, '$[5]'), ?2,
    json_extract(m.value, '$[6]'), json_extract(m.value, '$[7]'), json_extract(m.value, '$[8]')
FROM json_each(?3) m WHERE true ON CONFLICT DO NOTHING;

-- name: send.known
-- The existing message in place of one not inserted: same id, or same key.
SELECT * FROM evertick_outbox WHERE id = ?2 AND app = ?1
UNION ALL
SELECT * FROM evertick_outbox WHERE app = ?1 AND channel = ?3 AND key = ?4 AND id <> ?2;

-- name: claim_messages.release_lost
-- Messages that a dead or missing node was sending. An attempt is spent, even if the message was sent. Without a fence,
-- the old owner gets "lost".
UPDATE evertick_outbox INDEXED BY evertick_outbox_sending
SET state = 'waiting', due_at = ?3, attempts = attempts + 1, error = ?4, node = NULL, fence = NULL, claimed_at = NULL
WHERE state = 'sending' AND app = ?1 AND channel = ?2
    AND NOT EXISTS (SELECT 1 FROM evertick_nodes n WHERE n.id = evertick_outbox.node AND n.died_at IS NULL);

-- name: claim_messages.release_strays
-- Messages of the calling node that it does not hold: the answer of their claim was lost.
UPDATE evertick_outbox INDEXED BY evertick_outbox_sending
SET state = 'waiting', due_at = ?4, node = NULL, fence = NULL, claimed_at = NULL
WHERE state = 'sending' AND app = ?1 AND channel = ?2 AND node = ?3 AND id NOT IN (SELECT value FROM json_each(?5));

-- name: claim_messages.pick
-- Longest due first.
SELECT json_group_array(id) FROM (
    SELECT id FROM evertick_outbox INDEXED BY evertick_outbox_waiting
    WHERE state = 'waiting' AND app = ?1 AND channel = ?2 AND due_at <= ?3 AND @readable
    ORDER BY due_at LIMIT ?4);

-- name: claim_messages.take
-- From now on only (node, fence) may settle them.
UPDATE evertick_outbox SET state = 'sending', node = ?2, fence = ?3, claimed_at = ?4
WHERE id IN (SELECT value FROM json_each(?1));

-- name: claim_messages.read
-- The columns for the owner.
SELECT json_group_array(json_object('id', m.id, 'fence', m.fence, 'channel', m.channel, 'key', m.key, 'body', m.body,
    'headers', m.headers, 'attempts', m.attempts, 'due_at', m.due_at, 'created_at', m.created_at,
    'caused_by', m.caused_by, 'error', m.error, 'dispatches', m.dispatches))
FROM json_each(?1) wanted CROSS JOIN evertick_outbox m ON m.id = wanted.value;

-- name: claim_messages.next_due
-- When the next message of a channel is due.
SELECT due_at FROM evertick_outbox INDEXED BY evertick_outbox_waiting
WHERE state = 'waiting' AND app = ?1 AND channel = ?2 AND @readable ORDER BY due_at LIMIT 1;

-- name: settle_messages.held
-- The guard, an object of id to fence: the messages that this claim still holds.
SELECT json_group_array(m.id) FROM json_each(?2) o CROSS JOIN evertick_outbox m ON m.id = o.key
WHERE m.app = ?1 AND m.node = ?3 AND m.fence = o.value AND m.claimed_at IS NOT NULL;

-- name: settle_messages.end
-- Sent or dead. A sent message is remembered by its key, without its body.
UPDATE evertick_outbox
SET state = ?2, attempts = ?3, error = ?4, settled_at = ?5, forget_at = ?5 + ?6, claimed_at = NULL,
    body = CASE ?2 WHEN 'sent' THEN 'null' ELSE body END, headers = CASE ?2 WHEN 'sent' THEN NULL ELSE headers END
WHERE id IN (SELECT value FROM json_each(?1));

-- name: settle_messages.put_back
-- Waiting again: to be retried later, or released.
UPDATE evertick_outbox
SET state = 'waiting', due_at = ?2, attempts = coalesce(?3, attempts), error = coalesce(?4, error), claimed_at = NULL
WHERE id IN (SELECT value FROM json_each(?1));

-- name: settle_messages.answered_before
-- Settled before by this claim.
SELECT 1 FROM evertick_outbox WHERE id = ?2 AND app = ?1 AND node = ?3 AND fence = ?4 AND claimed_at IS NULL;

-- name: messages
-- For display, newest first: ids are in the order of time.
SELECT * FROM evertick_outbox INDEXED BY sqlite_autoindex_evertick_outbox_1
WHERE id BETWEEN ?5 AND ?5 || char(1114111) AND app = ?1 AND (?2 IS NULL OR channel = ?2)
    AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
ORDER BY id DESC LIMIT ?4;

-- name: messages.by_id
-- Messages with these ids.
SELECT * FROM evertick_outbox INDEXED BY sqlite_autoindex_evertick_outbox_1
WHERE id IN (SELECT value FROM json_each(?5)) AND app = ?1 AND (?2 IS NULL OR channel = ?2)
    AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
ORDER BY id DESC LIMIT ?4;

-- name: messages.by_key
-- The message of a channel with this key.
SELECT * FROM evertick_outbox INDEXED BY evertick_outbox_key
WHERE app = ?1 AND channel = ?2 AND key = ?5 AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3))) LIMIT ?4;

-- name: messages.unsent
-- Without reading sent messages, which are many.
SELECT * FROM (
    SELECT * FROM evertick_outbox INDEXED BY evertick_outbox_waiting
    WHERE state = 'waiting' AND app = ?1 AND (?2 IS NULL OR channel = ?2)
    UNION ALL
    SELECT * FROM evertick_outbox INDEXED BY evertick_outbox_sending
    WHERE state = 'sending' AND app = ?1 AND (?2 IS NULL OR channel = ?2)
    UNION ALL
    SELECT * FROM evertick_outbox INDEXED BY evertick_outbox_dead
    WHERE state = 'dead' AND app = ?1 AND (?2 IS NULL OR channel = ?2))
WHERE state IN (SELECT value FROM json_each(?3)) ORDER BY id DESC LIMIT ?4;

-- name: channels.next
-- The next channel with unsent messages, by three index searches.
SELECT min(channel) AS channel FROM (
    SELECT min(channel) AS channel FROM evertick_outbox INDEXED BY evertick_outbox_waiting
    WHERE state = 'waiting' AND app = ?1 AND channel > ?2
    UNION ALL
    SELECT min(channel) FROM evertick_outbox INDEXED BY evertick_outbox_sending
    WHERE state = 'sending' AND app = ?1 AND channel > ?2
    UNION ALL
    SELECT min(channel) FROM evertick_outbox INDEXED BY evertick_outbox_dead
    WHERE state = 'dead' AND app = ?1 AND channel > ?2);

-- name: channels.counts
-- The state of a channel; counts stop at a bound.
SELECT (SELECT count(*) FROM (SELECT 1 FROM evertick_outbox INDEXED BY evertick_outbox_waiting
        WHERE state = 'waiting' AND app = ?1 AND channel = ?2 LIMIT ?3)) AS waiting,
    (SELECT count(*) FROM (SELECT 1 FROM evertick_outbox INDEXED BY evertick_outbox_sending
        WHERE state = 'sending' AND app = ?1 AND channel = ?2 LIMIT ?3)) AS sending,
    (SELECT count(*) FROM (SELECT 1 FROM evertick_outbox INDEXED BY evertick_outbox_dead
        WHERE state = 'dead' AND app = ?1 AND channel = ?2 LIMIT ?3)) AS dead;

-- name: channels.failing
-- When the oldest message was written that failed before and is tried again.
SELECT created_at FROM evertick_outbox INDEXED BY evertick_outbox_failing
WHERE state IN ('waiting', 'sending') AND attempts > 0 AND app = ?1 AND channel = ?2 ORDER BY created_at LIMIT 1;

-- name: retry_messages
-- Due now; a dead one starts with no attempt spent. Ignores a message whose run is no longer dispatched by it.
UPDATE evertick_outbox
SET attempts = CASE state WHEN 'dead' THEN 0 ELSE attempts END, state = 'waiting', due_at = ?3, forget_at = NULL,
    settled_at = NULL, node = NULL, fence = NULL
WHERE id = ?2 AND app = ?1 AND state IN ('waiting', 'dead') AND (dispatches IS NULL OR EXISTS (
    SELECT 1 FROM evertick_runs r
    WHERE r.app = ?1 AND r.id = evertick_outbox.caused_by AND r.fence = dispatches AND r.state = 'dispatched'));

-- name: hasten_messages
-- Due now: messages that failed before, because the broker is reachable again.
UPDATE evertick_outbox SET due_at = ?3 WHERE id IN (
    SELECT id FROM evertick_outbox INDEXED BY evertick_outbox_waiting
    WHERE state = 'waiting' AND app = ?1 AND channel = ?2 AND due_at > ?3 AND attempts > 0 ORDER BY due_at LIMIT ?4);

-- name: drop_messages.cancel
-- Request the cancel of the run whose dispatch message is dropped.
UPDATE evertick_runs SET is_cancel_requested = 1, cancel_reason = coalesce(cancel_reason, ?4), deadline = ?3
WHERE state = 'dispatched' AND pushed_at IS NULL AND (app, id, fence) = (
    SELECT app, caused_by, dispatches FROM evertick_outbox
    WHERE id = ?2 AND app = ?1 AND state IN ('waiting', 'dead') AND dispatches IS NOT NULL);

-- name: drop_messages
-- Delete a message that is not being sent.
DELETE FROM evertick_outbox WHERE id = ?2 AND app = ?1 AND state IN ('waiting', 'dead');

-- name: prune.messages
-- Sent and dead messages whose time to be remembered is over.
DELETE FROM evertick_outbox WHERE id IN (
    SELECT id FROM evertick_outbox INDEXED BY evertick_outbox_forget
    WHERE app = ?1 AND forget_at <= ?2 ORDER BY forget_at LIMIT ?3);

-- name: join.channels
-- The channels that it delivers, and the tasks that it leaves to others.
UPDATE evertick_nodes SET channels = ?2, leaves = ?3 WHERE id = ?1;

-- ================================================================================================= feed

-- name: feed.exists
-- Whether the app has a feed; read once per intent.
SELECT 1 FROM evertick_feeds WHERE app = ?1;

-- name: feed.publish
-- Events as given.
INSERT INTO evertick_feed (app, at, kind, body) VALUES (?1, ?2, ?3, ?4);

-- part: runs_of_event
-- Runs in the form that `evertick.feed` reads, from pairs of id and reason.
INSERT INTO evertick_feed (app, at, kind, body)
SELECT ?1, ?2, ?3, json_group_array(json_array(r.id, r.schedule_key, r.task, r.fire_at, r.due_at, r.cause, r.verdict,
    coalesce(json_extract(w.value, '$[1]'), r.parked_for, r.reason), r.attempts, r.node))
FROM json_each(?4) w

-- name: feed.publish_runs
-- Live runs as they are now.
@runs_of_event CROSS JOIN evertick_runs r ON r.app = ?1 AND r.id = json_extract(w.value, '$[0]')
HAVING count(*) > 0;

-- name: feed.publish_ended
-- Runs that have just moved to history.
@runs_of_event CROSS JOIN evertick_history r ON r.app = ?1 AND r.id = json_extract(w.value, '$[0]')
HAVING count(*) > 0;

-- name: feed.publish_gaps
-- Gaps that were just recorded.
INSERT INTO evertick_feed (app, at, kind, body)
SELECT ?1, ?2, 'gap.recorded',
    json_group_array(json_array(g.schedule_key, g.first_at, g.last_at, g.count, g.verdict, g.reason))
FROM json_each(?3) w CROSS JOIN evertick_gaps g ON g.id = w.value
HAVING count(*) > 0;

-- name: feed.publish_nodes
-- Nodes of any app that have ended.
INSERT INTO evertick_feed (app, at, kind, body)
SELECT n.app, ?1, ?2, json_group_array(json_array(n.id, n.name))
FROM json_each(?3) w CROSS JOIN evertick_nodes n ON n.id = w.value
WHERE n.app IN (SELECT app FROM evertick_feeds) GROUP BY n.app;

-- part: feed_last
-- The number of the last row ever written.
coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'evertick_feed'), 0)

-- name: keep_feed
-- An existing feed continues, with the new time.
INSERT INTO evertick_feeds (app, epoch, kept, pruned_seq) VALUES (?1, ?2, ?3, @feed_last)
ON CONFLICT (app) DO UPDATE SET kept = excluded.kept;

-- name: keep_feed.end
-- Its rows are pruned later.
DELETE FROM evertick_feeds WHERE app = ?1;

-- name: feed
-- A part of the feed and its bounds, in one snapshot; always a row, if there is a feed.
SELECT f.epoch, f.pruned_seq, @feed_last AS last_seq, r.seq, r.at, r.kind, r.body
FROM evertick_feeds f LEFT JOIN (
    SELECT seq, at, kind, body FROM evertick_feed
    WHERE app = ?1 AND seq >= ?2 AND seq > (SELECT pruned_seq FROM evertick_feeds WHERE app = ?1) AND at >= ?3 AND (?4 IS NULL OR kind IN (SELECT value FROM json_each(?4)))
    ORDER BY seq LIMIT ?5) r
WHERE f.app = ?1 ORDER BY r.seq;

-- name: feed_state
-- Nothing delays readers here, because there is one writer.
SELECT kept FROM evertick_feeds WHERE app = ?1;

-- name: prune.feed
-- Checks only the oldest events, so that a feed with nothing to prune costs little. All events, if the feed was turned
-- off.
DELETE FROM evertick_feed WHERE seq IN (SELECT seq FROM evertick_feed WHERE app = ?1 ORDER BY seq LIMIT ?3)
    AND at < coalesce((SELECT ?2 - kept FROM evertick_feeds WHERE app = ?1), 9223372036854775807) RETURNING seq;

-- name: prune.feed_mark
-- Cursors before it are refused from now on.
UPDATE evertick_feeds SET pruned_seq = max(pruned_seq, ?2) WHERE app = ?1;

-- ================================================================================================= foreign commits

-- name: changed.waiting
-- Which of the newest runs wait. Read after every commit of another process, so it reads few rows.
SELECT id FROM (SELECT id, state FROM evertick_runs WHERE app = ?1 ORDER BY id DESC LIMIT 20) WHERE state = 'waiting';

-- ================================================================================================= a wrong clock

-- part: run_waits_for_wrong_time
-- A live run `r` that was put back or released at a time in the future: after the earliest known wrong time (?3), or
-- later than any run waits (?4).
r.state IN ('waiting', 'blocked', 'parked') AND r.due_at > ?2 AND (
    (r.due_at >= ?3 AND (r.attempts > 0 OR r.losses > 0 OR r.fence IS NOT NULL
        OR (r.cause IN ('fire', 'trigger', 'rerun') AND r.schedule_id IS NOT NULL AND r.fire_at <= ?2)))
    OR (r.due_at > ?4 AND (r.attempts > 0 OR r.losses > 0)))

-- part: run_written_at
-- The latest time at which a live run `r` was written.
max(r.created_at, coalesce(r.started_at, 0), coalesce(r.dispatched_at, 0), coalesce(r.pushed_at, 0),
    coalesce(r.taken_at, 0), coalesce(r.killed_at, 0))

-- name: clock.runs
-- Live runs with times of past events in the future, and runs that wait for such a time.
SELECT r.id, nullif(max(@run_written_at, ?2), ?2) AS at FROM evertick_runs r
WHERE r.app = ?1 AND (@run_written_at > ?2 OR (@run_waits_for_wrong_time)) LIMIT ?5;

-- name: clock.history
-- Runs that began or ended at such a time.
SELECT id, max(created_at, coalesce(started_at, 0), finished_at) AS at FROM evertick_history
WHERE app = ?1 AND (created_at > ?2 OR started_at > ?2 OR finished_at > ?2) LIMIT ?3;

-- name: clock.attempts
-- The same for attempts.
SELECT run, fence, max(coalesce(started_at, 0), finished_at) AS at FROM evertick_attempts
WHERE app = ?1 AND (started_at > ?2 OR finished_at > ?2) LIMIT ?3;

-- name: clock.gaps
-- Gaps that were recorded at such a time.
SELECT id, schedule_id, schedule_key, first_at, last_at, recorded_at AS at FROM evertick_gaps
WHERE app = ?1 AND recorded_at > ?2 LIMIT ?3;

-- name: clock.keys
-- Keys held for a period by runs that were created at such a time.
SELECT u.key, coalesce(r.created_at, h.created_at) AS at FROM evertick_unique u
LEFT JOIN evertick_runs r ON r.app = u.app AND r.id = u.run
LEFT JOIN evertick_history h ON h.app = u.app AND h.id = u.run
WHERE u.app = ?1 AND u.until > ?2 AND coalesce(r.created_at, h.created_at) > ?2 LIMIT ?3;

-- name: clock.messages
-- The same for messages.
SELECT m.id, nullif(max(m.created_at, coalesce(m.claimed_at, 0), coalesce(m.settled_at, 0), ?2), ?2) AS at
FROM evertick_outbox m
WHERE m.app = ?1 AND (max(m.created_at, coalesce(m.claimed_at, 0), coalesce(m.settled_at, 0)) > ?2
    OR (m.state = 'waiting' AND m.due_at > ?2 AND ((m.due_at >= ?3 AND (m.attempts > 0 OR m.fence IS NOT NULL))
        OR (m.due_at > ?4 AND m.attempts > 0)))) LIMIT ?5;

-- name: clock.nodes
-- Nodes that started, sent a heartbeat or died at such a time.
SELECT id, max(started_at, beat_at, coalesce(died_at, 0)) AS at FROM evertick_nodes
WHERE app = ?1 AND max(started_at, beat_at, coalesce(died_at, 0)) > ?2 LIMIT ?3;

-- name: clock.duties
-- Duties that were taken or done at such a time.
SELECT name, max(since, coalesce(ticked_at, 0)) AS at FROM evertick_duties
WHERE app = ?1 AND max(since, coalesce(ticked_at, 0)) > ?2 LIMIT ?3;

-- name: clock.events
-- Events of the feed that were written at such a time.
SELECT seq, at FROM evertick_feed WHERE app = ?1 AND at > ?2 LIMIT ?3;

-- name: clock.schedules
-- Schedules that were created at such a time.
SELECT id, created_at AS at FROM evertick_schedules WHERE app = ?1 AND created_at > ?2 LIMIT ?3;

-- name: clock.mend_runs
-- Waiting runs become due now; runs that were never tried, after their original delay. Owners and fences stay.
UPDATE evertick_runs
SET due_at = CASE WHEN due_at <= ?4 THEN due_at WHEN created_at > ?4 AND attempts = 0 THEN ?3 + max(due_at - created_at, 0) ELSE ?3 END,
    fire_at = CASE WHEN fire_at <= ?4 OR created_at <= ?4 THEN fire_at
        WHEN schedule_id IS NULL THEN ?3 + max(fire_at - created_at, 0) ELSE ?3 END,
    cause = CASE WHEN fire_at > ?4 AND created_at > ?4 AND cause IN ('fire', 'backfill') THEN 'trigger' ELSE cause END,
    deadline = CASE WHEN deadline <= ?4 THEN deadline
        WHEN state = 'running' AND started_at > ?4 THEN ?3 + max(deadline - started_at, 0)
        WHEN state = 'dispatched' THEN ?3 + max(deadline - max(coalesce(dispatched_at, 0), coalesce(pushed_at, 0),
            coalesce(taken_at, 0), coalesce(killed_at, 0)), 0)
        ELSE deadline END,
    created_at = CASE WHEN created_at > ?4 THEN ?3 ELSE created_at END,
    started_at = CASE WHEN started_at > ?4 THEN ?3 ELSE started_at END,
    dispatched_at = CASE WHEN dispatched_at > ?4 THEN ?3 ELSE dispatched_at END,
    pushed_at = CASE WHEN pushed_at > ?4 THEN ?3 ELSE pushed_at END,
    taken_at = CASE WHEN taken_at > ?4 THEN ?3 ELSE taken_at END,
    killed_at = CASE WHEN killed_at > ?4 THEN ?3 ELSE killed_at END
WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: clock.mend_keys
-- For their original period, from now.
UPDATE evertick_unique
SET until = ?3 + max(until - coalesce(
    (SELECT r.created_at FROM evertick_runs r WHERE r.app = ?1 AND r.id = evertick_unique.run),
    (SELECT h.created_at FROM evertick_history h WHERE h.app = ?1 AND h.id = evertick_unique.run), until), 0)
WHERE app = ?1 AND key IN (SELECT value FROM json_each(?2));

-- name: clock.mend_messages
-- Like runs.
UPDATE evertick_outbox
SET due_at = CASE WHEN due_at <= ?4 OR state <> 'waiting' THEN due_at
        WHEN created_at > ?4 AND attempts = 0 THEN ?3 + max(due_at - created_at, 0) ELSE ?3 END,
    forget_at = CASE WHEN settled_at > ?4 THEN ?3 + max(forget_at - settled_at, 0) ELSE forget_at END,
    created_at = CASE WHEN created_at > ?4 THEN ?3 ELSE created_at END,
    claimed_at = CASE WHEN claimed_at > ?4 THEN ?3 ELSE claimed_at END,
    settled_at = CASE WHEN settled_at > ?4 THEN ?3 ELSE settled_at END
WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: clock.mend_history
-- Durations stay; the end is now at the latest. A run for a moment that has not come is detached from that moment.
UPDATE evertick_history
SET fire_at = CASE WHEN fire_at > ?4 AND new.made > ?4 THEN coalesce(new.began, new.ended) ELSE fire_at END,
    cause = CASE WHEN fire_at > ?4 AND new.made > ?4 AND cause IN ('fire', 'backfill') THEN 'trigger' ELSE cause END,
    reason = CASE WHEN fire_at > ?4 AND new.made > ?4 AND coalesce(reason, 'late') = 'late' THEN 'clock' ELSE reason END,
    due_at = CASE WHEN due_at > ?4 THEN coalesce(new.began, new.ended) ELSE due_at END,
    created_at = CASE WHEN created_at > ?4 THEN coalesce(new.began, new.ended) ELSE created_at END,
    started_at = new.began,
    finished_at = new.ended
FROM (SELECT id AS of, created_at AS made,
        CASE WHEN finished_at > ?4 THEN ?3 ELSE finished_at END AS ended,
        CASE WHEN started_at <= ?4 THEN started_at
            WHEN finished_at > ?4 THEN ?3 - max(finished_at - started_at, 0)
            WHEN started_at IS NULL THEN NULL ELSE finished_at END AS began
    FROM evertick_history WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2))) new
WHERE app = ?1 AND id = new.of;

-- name: clock.mend_attempts
-- Pairs of run and fence.
UPDATE evertick_attempts
SET started_at = CASE WHEN started_at > ?4 THEN ?3 ELSE started_at END, finished_at = min(finished_at, ?3)
WHERE app = ?1 AND (run, fence) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?2));

-- name: clock.mend_gap
-- Ends at the last of its moments that has come.
UPDATE evertick_gaps SET last_at = ?3, count = ?4, is_exact = ?5, reason = 'clock', recorded_at = ?6
WHERE app = ?1 AND id = ?2 AND recorded_at > ?7;

-- name: clock.drop_gap
-- None of its moments has come.
DELETE FROM evertick_gaps WHERE app = ?1 AND id = ?2 AND recorded_at > ?3;

-- name: clock.mend_nodes
-- At most one lease from now; the next heartbeat extends it.
UPDATE evertick_nodes
SET started_at = min(started_at, ?3), beat_at = min(beat_at, ?3), lease_until = min(lease_until, ?3 + lease),
    died_at = min(died_at, ?3)
WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));

-- name: clock.mend_duties
-- The next act keeps its distance to the last one.
UPDATE evertick_duties
SET next_at = CASE WHEN ticked_at > ?4 AND next_at > ticked_at THEN ?3 + next_at - ticked_at
        WHEN next_at > ?4 AND ticked_at > ?4 THEN ?3 ELSE next_at END,
    since = min(since, ?3), ticked_at = min(ticked_at, ?3)
WHERE app = ?1 AND name IN (SELECT value FROM json_each(?2));

-- name: clock.mend_events
-- Otherwise the feed would keep them for as long as the clock was ahead.
UPDATE evertick_feed SET at = ?3 WHERE app = ?1 AND seq IN (SELECT value FROM json_each(?2));

-- name: clock.mend_schedules
-- Their cursors were repaired before.
UPDATE evertick_schedules SET created_at = ?3 WHERE app = ?1 AND id IN (SELECT value FROM json_each(?2));
