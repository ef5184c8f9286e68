// Claim, handle and acknowledge; the effect commits with the acknowledgement.
const { Client } = require("pg");

async function main() {
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  for (;;) {
    const { rows } = await client.query("SELECT * FROM delayed_queue_claim('mixed', 20, '2 seconds')");
    if (rows.length === 0) await new Promise((resolve) => setTimeout(resolve, 50));
    for (const { id, key, payload, lease_id } of rows) {
      await client.query("BEGIN");
      const { rows: [{ number }] } = await client.query(
        "SELECT delayed_queue_acknowledge($1, ARRAY[$2::bigint]) AS number", [lease_id, id]);
      if (number === 1) {
        await client.query("INSERT INTO handled VALUES ($1, $2, 'node')", [key, payload.number]);
      }
      await client.query("COMMIT");
    }
  }
}
main();
