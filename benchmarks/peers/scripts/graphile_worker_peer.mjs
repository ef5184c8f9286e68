// Graphile Worker: addJob, addJobs, run.
import { main, OPTIONS, packages, stamp, TEXT } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = packages("graphile-worker");
const { Pool } = packages("pg");
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

// A pool of ours, because a connection string does not know libpq's variables.
const pool = (max) => new Pool({ max, idleTimeoutMillis: 0 });
const taskList = { noop: async () => {}, stamped: async ({ offeredAt }) => stamp(offeredAt) };

await main({
  schema: async () => {
    const pgPool = pool(2);
    await runMigrations({ pgPool, logger });
    await pgPool.end();
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
    utils.addJobs(
      Array.from({ length: size }, () => ({ identifier: "noop", payload: { text: TEXT } })),
    ),
  stamped: ({ utils }, offeredAt) => utils.addJob("stamped", { offeredAt }),
  work: async () => {
    const { poolSize = 10, ...worker } = OPTIONS;
    const preset = { worker };
    const runner = await run({ pgPool: pool(poolSize), logger, taskList, preset, noHandleSignals: true });
    await runner.promise;
  },
});
