// Offer the numbers from the last committed one on; each batch commits with the count of it.
const { Client } = require("pg");

async function main(count) {
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  for (;;) {
    await client.query("BEGIN");
    const { rows } = await client.query("SELECT number FROM produced FOR UPDATE");
    const first = rows[0].number;
    const last = Math.min(first + 100, count);
    const messages = [];
    for (let n = first; n < last; n++) messages.push({ key: String(n), payload: { number: n } });
    await client.query("SELECT * FROM delayed_queue_offer_many('mixed', $1)", [JSON.stringify(messages)]);
    await client.query("UPDATE produced SET number = $1", [last]);
    await client.query("COMMIT");
    if (last === count) break;
  }
  await client.end();
}
main(Number(process.argv[2]));
