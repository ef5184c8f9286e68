// The commands of each peer's script, as in protocol.py.
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

export const packages = createRequire(`${process.env.BENCH_MODULES}/`);
export const OPTIONS = JSON.parse(process.env.BENCH_OPTIONS ?? "{}");
export const TEXT = "x".repeat(90);
export const DATABASE = {
  host: process.env.PGHOST,
  port: process.env.PGPORT && Number(process.env.PGPORT),
  user: process.env.PGUSER,
  password: process.env.PGPASSWORD,
  database: process.env.PGDATABASE,
};
const CHUNK = 1000;
const WARM_UP = 5;
let numbers = 0;

// Date.now() returns whole milliseconds only.
const now = () => (performance.timeOrigin + performance.now()) / 1000;

export const times = (size, make) => Array.from({ length: size }, make);

export const group = () =>
  OPTIONS.groups ? { group: { id: `group-${numbers++ % OPTIONS.groups}` } } : {};

export function stamp(offeredAt) {
  appendFileSync(process.env.BENCH_STAMPS, `${offeredAt} ${now()}\n`);
}

async function timed(count, chunk, offer) {
  if (chunk === 1) for (let n = 0; n < WARM_UP; n++) await offer(1);
  const startedAt = performance.now();
  for (let start = 0; start < count; start += chunk) await offer(Math.min(chunk, count - start));
  console.log(JSON.stringify({ count, seconds: (performance.now() - startedAt) / 1000 }));
}

async function pace(count, rate, offer) {
  for (let n = 0; n < count; n++) {
    await sleep(((0.5 + Math.random()) / rate) * 1000);
    await offer(now());
  }
}

// schema and work stand alone; offer, bulk and stamped get the client that open returns.
export async function main({ schema, work, open, close, offer, bulk, stamped }) {
  const [what, count, rate] = process.argv.slice(2);
  if (what === "schema") return void (await schema());
  if (what === "work") return void (await work());
  const client = await open();
  if (what === "offer") await timed(Number(count), 1, () => offer(client));
  if (what === "bulk") await timed(Number(count), CHUNK, (size) => bulk(client, size));
  if (what === "pace") await pace(Number(count), Number(rate), (at) => stamped(client, at));
  await close(client);
}
