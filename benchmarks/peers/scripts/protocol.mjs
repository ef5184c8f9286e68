// What every script answers to, as in protocol.py.
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

export const packages = createRequire(`${process.env.BENCH_MODULES}/`);
export const OPTIONS = JSON.parse(process.env.BENCH_OPTIONS ?? "{}");
export const TEXT = "x".repeat(90);
const CHUNK = 1000;
const WARM_UP = 5;

// Date.now() knows whole milliseconds only.
const now = () => (performance.timeOrigin + performance.now()) / 1000;

export function stamp(offeredAt) {
  appendFileSync(process.env.BENCH_STAMPS, `${offeredAt} ${now()}\n`);
}

const GROUPS = Number(process.env.BENCH_GROUPS ?? 0);
let offered = 0;

export const group = () => (GROUPS ? { group: { id: `group-${offered++ % GROUPS}` } } : {});

export async function observe(of) {
  const begunAt = now();
  await sleep(OPTIONS.handler_seconds * 1000);
  appendFileSync(process.env.BENCH_STAMPS, `${of} ${begunAt} ${now()}\n`);
}

async function oneByOne(count, offer) {
  for (let n = 0; n < Math.min(WARM_UP, count); n++) await offer();
  const startedAt = performance.now();
  for (let n = 0; n < count; n++) await offer();
  return (performance.now() - startedAt) / 1000;
}

async function inChunks(count, offer) {
  const startedAt = performance.now();
  for (let start = 0; start < count; start += CHUNK) await offer(Math.min(CHUNK, count - start));
  return (performance.now() - startedAt) / 1000;
}

async function pace(count, rate, offer) {
  for (let n = 0; n < count; n++) {
    await sleep(((0.5 + Math.random()) / rate) * 1000);
    await offer(now());
  }
}

export async function main({ schema, open, close, offer, bulk, stamped, work }) {
  const [what, count, rate] = process.argv.slice(2);
  if (what === "schema") return void (await schema());
  if (what === "work") return void (await work());
  const client = await open();
  if (what === "pace") {
    await pace(Number(count), Number(rate), (moment) => stamped(client, moment));
  } else {
    const seconds =
      what === "offer"
        ? await oneByOne(Number(count), () => offer(client))
        : await inChunks(Number(count), (size) => bulk(client, size));
    console.log(JSON.stringify({ count: Number(count), seconds }));
  }
  await close(client);
}
