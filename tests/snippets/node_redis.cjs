// The snippet for node-redis in README.md, and what it says there of waiting.

const assert = require('node:assert/strict');
const { readFileSync } = require('node:fs');
const { createClient } = require('redis');

const readme = readFileSync('README.md', 'utf8');
const [, snippet] = readme.match(/```js\n([^]*?)```/);
const [, connect] = readme.match(/\| node-redis \|.*: `(await client\..*?)` \|/);
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

  const waiter = await new AsyncFunction('client', `return ${connect};`)(client);
  const waiting = waiter.sendCommand(['LOCK.ACQUIRE', 'invoice:7', token, '30000', 'BLOCK', '30000']);
  const blocked = async () => (await client.info('clients')).includes('blocked_clients:1');
  while (!(await blocked()));
  await client.sendCommand(['LOCK.RELEASE', 'invoice:7', 'another']);
  assert.equal((await waiting)[0], token);
  await client.sendCommand(['LOCK.RELEASE', 'invoice:7', token]);
  waiter.destroy();
  client.destroy();
})();
