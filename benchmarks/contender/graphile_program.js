// graphile-worker with the settings of its own published benchmarks, optionally without the local queue.
// The verbs are those of verbs.py, the records those of tally.py. They are written every 20 ms, because Node cannot map a
// file into memory.
'use strict';
const fs = require('fs');
const path = require('path');
const { Logger, makeWorkerUtils, parseCronItems, run, runMigrations } = require('graphile-worker');
const { Pool } = require('pg');

const connectionString = process.env.BENCH_URL;
const folder = process.env.BENCH_FOLDER;
const BULK = 1000;
const options = { localQueue: 500, ...JSON.parse(process.env.BENCH_OPTIONS || '{}') };
const preset = {
  worker: {
    connectionString,
    concurrentJobs: 24,
    maxPoolSize: 25,
    ...(options.localQueue ? { localQueue: { size: options.localQueue } } : {}),
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

const now = () => (performance.timeOrigin + performance.now()) / 1000;
const seconds = (since) => (performance.now() - since) / 1000;

let file = null;
let written = 0;
const records = [];

function count(number, due) {
  records.push([number, due, now()]);
}

function flush() {
  if (!records.length) return;
  if (file === null) file = fs.openSync(path.join(folder, `${process.pid}.tally`), 'w');
  const data = Buffer.alloc(24 * records.length);
  records.forEach(([number, due, began], at) => {
    data.writeBigInt64LE(BigInt(number), 24 * at);
    data.writeDoubleLE(due, 24 * at + 8);
    data.writeDoubleLE(began, 24 * at + 16);
  });
  fs.writeSync(file, data, 0, data.length, 8 + 24 * written);
  written += records.length;
  records.length = 0;
  const head = Buffer.alloc(8);
  head.writeBigInt64LE(BigInt(written));
  fs.writeSync(file, head, 0, 8, 0);
}

const taskList = {
  count: async (payload) => count(payload.number, payload.sent_at || 0),
  // A job of its crontab gets its minute.
  fire: async (payload) => count(payload.number, Date.parse(payload._cron.ts) / 1000),
};

async function withUtils(use) {
  const pool = new Pool({ connectionString, max: 4 });
  const utils = await makeWorkerUtils({ pgPool: pool });
  try {
    return await use(utils);
  } finally {
    await utils.release();
    await pool.end();
  }
}

const verbs = {
  async fill(runs, singles) {
    await runMigrations({ connectionString });
    return withUtils(async (utils) => {
      const began = performance.now();
      for (let first = 0; first < runs; first += BULK) {
        const length = Math.min(BULK, runs - first);
        await utils.addJobs(Array.from({ length }, (_, i) => ({ identifier: 'count', payload: { number: first + i } })));
      }
      const bulk = seconds(began);
      const second = performance.now();
      for (let number = runs; number < runs + singles; number++) await utils.addJob('count', { number });
      return { bulk_seconds: bulk, single_seconds: seconds(second) };
    });
  },

  async work(schedules) {
    await runMigrations({ connectionString });
    // The default has no backfill period: minutes before its start are not caught up.
    const items = Array.from({ length: schedules }, (_, number) => ({
      task: 'fire', match: '* * * * *', identifier: `s${number}`, payload: { number },
    }));
    fs.writeFileSync(path.join(folder, `${process.pid}.ready`), '');
    const go = path.join(folder, `${process.pid}.go`);
    while (!fs.existsSync(go)) await new Promise((resolve) => setTimeout(resolve, 1));
    setInterval(flush, 20);
    const logger = new Logger(() => () => {});
    const runner = await run({ preset, taskList, parsedCronItems: parseCronItems(items), logger, noHandleSignals: true });
    await new Promise((resolve) => process.once('SIGTERM', resolve));
    await runner.stop();
    flush();
  },

  async send(runs, perSecond) {
    await withUtils(async (utils) => {
      const began = performance.now();
      for (let number = 0; number < runs; number++) {
        const wait = began + (number * 1000) / perSecond - performance.now();
        if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
        await utils.addJob('count', { number, sent_at: now() });
      }
    });
  },

  // Its schedules are in its code, so nothing is added. Its crontab has no seconds.
  async plan() {
    await runMigrations({ connectionString });
    return Math.ceil(now());
  },

  async remaining() {
    const pool = new Pool({ connectionString });
    const answer = await pool.query('SELECT count(*)::int AS count FROM graphile_worker._private_jobs');
    await pool.end();
    return answer.rows[0].count;
  },
};

const [verb, ...values] = process.argv.slice(2);
verbs[verb](...values.map((value) => JSON.parse(value))).then(
  (answer) => {
    console.log(JSON.stringify(answer === undefined ? null : answer));
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
