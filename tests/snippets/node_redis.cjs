// The snippet for node-redis in README.md.

const assert = require('node:assert/strict');
const { readFileSync } = require('node:fs');
const { createClient } = require('redis');

const [, snippet] = readFileSync('README.md', 'utf8').match(/```js\n([^]*?)```/);
const AsyncFunction = (async () => {}).constructor;
const run = new AsyncFunction('client', 'token', `${snippet}; return { held, fence, released };`);

(async () => {
  const client = await createClient({ socket: { path: process.argv[2] } }).connect();
  const token = crypto.randomUUID();
  const mine = await run(client, token);
  assert.equal(mine.held[0], token);
  assert(mine.held[1] > 0 && mine.fence > mine.held[1]);
  assert(Number.isSafeInteger(mine.fence));
  assert.equal(mine.released, 1);
  assert.equal(await client.exists('invoice:7'), 0);

  await client.sendCommand(['LOCK.ACQUIRE', 'invoice:7', 'another', '60000']);
  assert.deepEqual(await run(client, token), { held: null, fence: null, released: 0 });
  await client.sendCommand(['LOCK.RELEASE', 'invoice:7', 'another']);
  client.destroy();
})();
