// BullMQ on its PostgreSQL backend: add, addBulk, Worker.
import { DATABASE, main, OPTIONS, packages, stamp, TEXT, times } from "./protocol.mjs";

const { createPostgresBackend, withBackend } = packages("bullmq");
const { Queue, Worker } = withBackend(createPostgresBackend);
const NAME = "benchmark";

async function open(more) {
  const queue = new Queue(NAME, { connection: { ...DATABASE, ...more } });
  queue.on("error", (error) => console.error(error));
  await queue.waitUntilReady();
  return queue;
}

await main({
  schema: async () => (await open({ migrate: true })).close(),
  work: () => {
    const process = async (job) => {
      if (job.name === "stamped") stamp(job.data.offeredAt);
    };
    const worker = new Worker(NAME, process, { connection: DATABASE, ...OPTIONS });
    worker.on("error", (error) => console.error(error));
  },
  open,
  close: (queue) => queue.close(),
  offer: (queue) => queue.add("noop", { text: TEXT }),
  bulk: (queue, size) =>
    queue.addBulk(times(size, () => ({ name: "noop", data: { text: TEXT } }))),
  stamped: (queue, offeredAt) => queue.add("stamped", { offeredAt }),
});
