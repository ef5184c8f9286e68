// pg-boss: send, insert, and either work() or a loop of fetch and complete.
import { setTimeout as sleep } from "node:timers/promises";
import { DATABASE, group, main, OPTIONS, packages, stamp, TEXT, times } from "./protocol.mjs";

const { PgBoss } = packages("pg-boss");

async function start(more) {
  const boss = new PgBoss({ ...DATABASE, ...more });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function fetchAndComplete(boss, batchSize) {
  for (;;) {
    const jobs = await boss.fetch("noop", { batchSize, ...OPTIONS.limits });
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
  work: async () => {
    const boss = await start(OPTIONS.boss);
    await boss.work("stamped", OPTIONS.work ?? {}, async (jobs) => {
      for (const job of jobs) stamp(job.data.offeredAt);
    });
    if (OPTIONS.fetch) await fetchAndComplete(boss, OPTIONS.fetch);
    else await boss.work("noop", OPTIONS.work ?? {}, async () => {});
  },
  open: () => start({ supervise: false, schedule: false }),
  close: (boss) => boss.stop({ graceful: false }),
  offer: (boss) => boss.send("noop", { text: TEXT }),
  bulk: (boss, size) =>
    boss.insert("noop", times(size, () => ({ data: { text: TEXT }, ...group() }))),
  stamped: (boss, offeredAt) => boss.send("stamped", { offeredAt }),
});
