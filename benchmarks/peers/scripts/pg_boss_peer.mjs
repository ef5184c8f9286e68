// pg-boss: send, insert, and either work() or a loop of fetch and complete.
import { setTimeout as sleep } from "node:timers/promises";
import { group, main, observe, OPTIONS, packages, stamp, TEXT } from "./protocol.mjs";

const { PgBoss } = packages("pg-boss");
const environment = {
  host: process.env.PGHOST,
  port: process.env.PGPORT && Number(process.env.PGPORT),
  user: process.env.PGUSER,
  password: process.env.PGPASSWORD,
  database: process.env.PGDATABASE,
};

async function start(more) {
  const boss = new PgBoss({ ...environment, ...more });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function fetchAndComplete(boss, batchSize) {
  for (;;) {
    const jobs = await boss.fetch("noop", { batchSize, ...OPTIONS.limits });
    if (OPTIONS.handler_seconds) await Promise.all(jobs.map((job) => observe(job.groupId)));
    if (jobs.length > 0) await boss.complete("noop", jobs.map((job) => job.id));
    else await sleep(50);
  }
}

await main({
  schema: async () => {
    const boss = await start();
    for (const name of ["noop", "stamped"]) await boss.createQueue(name, { notify: true });
    await boss.stop({ graceful: false });
  },
  open: () => start({ supervise: false, schedule: false }),
  close: (boss) => boss.stop({ graceful: false }),
  offer: (boss) => boss.send("noop", { text: TEXT }),
  bulk: (boss, size) =>
    boss.insert("noop", Array.from({ length: size }, () => ({ data: { text: TEXT }, ...group() }))),
  stamped: (boss, offeredAt) => boss.send("stamped", { offeredAt }),
  work: async () => {
    const boss = await start(OPTIONS.boss);
    await boss.work("stamped", OPTIONS.work ?? {}, async (jobs) => {
      for (const job of jobs) stamp(job.data.offeredAt);
    });
    if (OPTIONS.fetch) await fetchAndComplete(boss, OPTIONS.fetch);
    else await boss.work("noop", OPTIONS.work ?? {}, async () => {});
  },
});
