// A lock for node-redis (6.3): withLock extends it as long as its callback runs.
//
//     const client = await createClient().on('error', console.error).connect();
//     await withLock(client, 'invoice:7', { ttl: 30_000, wait: 30_000 }, async (lock) => { // in milliseconds
//       await pay(7, await lock.fence()); // UPDATE … SET paid = true, fence = :fence WHERE id = 7 AND fence < :fence
//     });
//
// It is for one server: not for createCluster or createSentinel, whose commands go another way. To use it, copy the
// part up to `WRITE`, or import this file. As a program (after npm install redis@6) it writes a report in steps, under
// the lock:
//
//     node lock.mjs NAME TTL WAIT STEPS
//
// TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
// prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock,
// and with 1 where the lock was lost: the rest of the report is then another's to write.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { createClient } from 'redis';

/** Another holds the lock. */
export class LockNotAcquired extends Error {}

/** The lock is held no longer, or nobody knows: write nothing more. */
export class LockLost extends Error {}

/**
 * Calls work(lock) under the lock `name`, and releases it whatever becomes of the work. `ttl` is how long the lock
 * outlives a process that has died, and `wait` for how long to queue for it. Throws LockNotAcquired if another still
 * holds it then, and LockLost if it was lost before the work was done; an error of the work's own goes first.
 *
 * Work that keeps the event loop busy keeps the heartbeat from beating: that belongs in a worker thread.
 */
export async function withLock(client, name, { ttl, wait = 0 }, work) {
  if (Math.max(ttl, wait + 5_000) > 2 ** 31 - 1) throw new RangeError('setTimeout takes no more than 24 days');
  const token = randomUUID(); // a new one for each hold
  let connection; // of its own: a wait blocks it, and no beat must queue behind what the work asks
  const disconnect = () => connection?.isOpen && connection.destroy(); // who waits for a reply is told
  const connect = () => {
    disconnect();
    connection = client.duplicate();
    connection.on('error', () => {}); // it connects again, and who has asked is told
    return within(5_000, connection.connect()); // a server that hangs takes a connection, and says nothing
  };
  const call = (command, ...args) => connection.sendCommand([command, name, token, ...args]);

  const lost = new AbortController();
  const lose = () => lost.abort(new LockLost(name));
  let until; // for how long the lock can be counted on, by performance.now(), which nobody sets
  let expiry;
  const countFrom = (sent) => {
    until = sent + ttl;
    clearTimeout(expiry);
    expiry = setTimeout(lose, until - performance.now());
  };
  const extend = async () => {
    const sent = performance.now(); // not when the answer comes: by then some of the ttl is over
    if (await call('LOCK.EXTEND', `${ttl}`)) countFrom(sent);
    else lose();
  };

  const lock = {
    /** Aborted when the lock is lost, for what can be stopped half-way: a fetch, say. */
    signal: lost.signal,

    /** Throws LockLost unless the lock is held: between two steps of the work. */
    check() {
      if (performance.now() >= until) lose(); // the timer may be late, after a pause of the process
      lost.signal.throwIfAborted();
    },

    /** A number greater than all before it, for the storage to compare; ask right before each write. */
    async fence() {
      lock.check();
      let asked;
      let fence;
      do {
        asked = connection;
        fence = await lock.orLost(call('LOCK.FENCE')).catch((error) => {
          if (connection === asked) throw error;
        });
      } while (connection !== asked); // the heartbeat has replaced it meanwhile
      if (fence === null) lose();
      lost.signal.throwIfAborted();
      return fence;
    },

    /** What the promise settles to, or LockLost if the lock is lost first: no silent server may hold the work up. */
    orLost: (promise) =>
      new Promise((resolve, reject) => {
        const stop = () => reject(lost.signal.reason);
        lost.signal.addEventListener('abort', stop);
        promise.then(resolve, reject).finally(() => lost.signal.removeEventListener('abort', stop));
        if (lost.signal.aborted) stop();
      }),
  };

  let heartbeat;
  // A beat without an answer says nothing of the lock: the next one asks again, as long as its time lasts. It may be
  // just this connection that has gone silent.
  const replace = () => heartbeat && connect();
  const beat = () => within(ttl / 4, extend()).catch(replace).catch(() => {});
  let owed = false; // the release, also where no answer came to the acquire: it may have been granted
  const release = () => {
    owed = false;
    clearInterval(heartbeat);
    heartbeat = undefined;
    return within(5_000, call('LOCK.RELEASE')); // behind a beat that is under way
  };
  try {
    await connect();
    owed = true;
    const block = wait > 0 ? ['BLOCK', `${wait}`] : [];
    owed = (await within(wait + 5_000, call('LOCK.ACQUIRE', `${ttl}`, ...block))) !== null;
    if (!owed) throw new LockNotAcquired(name);
    countFrom(performance.now());
    await lock.orLost(extend()); // after a wait nobody knows when the ttl began
    lock.check();
    heartbeat = setInterval(beat, ttl / 3);
    const result = await work(lock);
    if (!(await release())) throw new LockLost(name);
    return result;
  } finally {
    if (owed) await release().catch(() => {}); // what went wrong first is what must be heard; the ttl ends the lock
    clearTimeout(expiry);
    disconnect();
  }
}

/** node-redis itself waits for a reply for ever. */
function within(ms, reply) {
  const late = async () => {
    await sleep(ms, undefined, { ref: false });
    throw new Error(`no reply within ${ms} ms`);
  };
  return Promise.race([reply, late()]);
}

// The part of a database, here in Lua: UPDATE … WHERE fence < :fence
const WRITE = `
  local last = redis.call('HGET', KEYS[1], 'fence')
  if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
  return 1`;

async function writeReport(client, lock, name, steps, signal) {
  for (let step = 1; step <= steps; step++) {
    await sleep(100, undefined, { signal }); // the work
    const fence = await lock.fence();
    const write = client.eval(WRITE, { keys: [`report:${name}`], arguments: [`${fence}`, `${step}`] });
    if (!(await lock.orLost(write))) throw new LockLost(name); // refused: a later holder has written
    console.log(`step ${step}, fence ${fence}`);
  }
}

async function main() {
  const [name, ...numbers] = process.argv.slice(2);
  const [ttl, wait, steps] = numbers.map(Number);
  const reconnectStrategy = (tries) => (tries < 20 ? 100 : false); // by default it goes on for ever
  const client = createClient({ socket: { port: process.env.REDIS_PORT ?? 6379, reconnectStrategy } });
  client.on('error', () => {}); // it connects again, and who has asked is told
  try {
    await within(5_000, client.connect());
    await withLock(client, name, { ttl, wait }, async (lock) => {
      // Kubernetes and systemd end a process by SIGTERM. From here on that ends the work, and the lock is released.
      const stop = new AbortController();
      process.once('SIGTERM', () => stop.abort());
      console.log(`acquired, fence ${await lock.fence()}`);
      await writeReport(client, lock, name, steps, stop.signal);
    });
    console.log('released');
  } catch (error) {
    if (error instanceof LockNotAcquired) {
      console.log('skipped: another holds the lock');
      process.exitCode = 75;
    } else if (error instanceof LockLost) {
      console.error('the lock was lost');
      process.exitCode = 1;
    } else {
      throw error;
    }
  } finally {
    if (client.isOpen) client.destroy();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
