// pg-boss: offer N jobs; then store them in batches of 1,000 and complete these. Prints seconds.
import { DATABASE, packages, TEXT, times } from "./protocol.mjs";

const { PgBoss } = packages("pg-boss");
const { Pool } = packages("pg");
const BATCH = 1000;
const STORE = "INSERT INTO stored (key, payload) SELECT * FROM unnest($1::text[], $2::text[])";

const count = Number(process.argv[2]);
const boss = new PgBoss({ ...DATABASE, supervise: false, schedule: false });
boss.on("error", (error) => console.error(error));
const pool = new Pool(DATABASE);
await boss.start();
await boss.createQueue("stored");
for (let start = 0; start < count; start += BATCH)
  await boss.insert("stored", times(BATCH, () => ({ data: { text: TEXT } })));

async function store() {
  for (;;) {
    const jobs = await boss.fetch("stored", { batchSize: BATCH });
    if (jobs.length === 0) return;
    await pool.query(STORE, [jobs.map((job) => job.id), jobs.map((job) => job.data.text)]);
    await boss.complete("stored", jobs.map((job) => job.id));
  }
}

const startedAt = performance.now();
await Promise.all(times(4, store));
console.log((performance.now() - startedAt) / 1000);
await pool.end();
await boss.stop({ graceful: false });
