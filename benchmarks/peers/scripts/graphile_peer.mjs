// Graphile Worker: addJob, addJobs, run.
import { main, OPTIONS, packages, stamp, TEXT, times } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = packages("graphile-worker");
const { Pool } = packages("pg");
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});
// A connection string would not use libpq's variables.
const pool = (max) => new Pool({ max, idleTimeoutMillis: 0 });

await main({
  schema: async () => {
    const pgPool = pool(2);
    await runMigrations({ pgPool, logger });
    await pgPool.end();
  },
  work: async () => {
    const { poolSize = 10, ...worker } = OPTIONS;
    const taskList = { noop: async () => {}, stamped: async ({ offeredAt }) => stamp(offeredAt) };
    const more = { preset: { worker }, noHandleSignals: true };
    const runner = await run({ pgPool: pool(poolSize), logger, taskList, ...more });
    await runner.promise;
  },
  open: async () => {
    const pgPool = pool(2);
    return { pgPool, utils: await makeWorkerUtils({ pgPool, logger }) };
  },
  close: async ({ pgPool, utils }) => {
    await utils.release();
    await pgPool.end();
  },
  offer: ({ utils }) => utils.addJob("noop", { text: TEXT }),
  bulk: ({ utils }, size) =>
    utils.addJobs(times(size, () => ({ identifier: "noop", payload: { text: TEXT } }))),
  stamped: ({ utils }, offeredAt) => utils.addJob("stamped", { offeredAt }),
});
