"""Leader election: of several candidates one leads, and another as soon as that one does not.

    python3 leader.py GROUP NAME TTL  # with lock_asyncio.py beside it, and what that needs

GROUP is the lock's name, NAME the candidate's (the pod's, say), and TTL is in milliseconds: how long after a leader's
death the next one leads. The server is at 127.0.0.1, port $REDIS_PORT (6379). It prints

    NAME follows            it waits for its turn. Nobody polls: a release hands the lock to who has waited longest.
    NAME leads, fence N     it does the leader's work, until it is told to stop or the lock is lost.
    NAME leads no longer    it has stopped, and not begun to release the lock. As a rule it follows again.
    NAME was refused        a later leader had written before: this one had not noticed yet that it was the leader no
                            longer. The fence is what kept its write out.

SIGTERM ends it, with exit code 0. If it led, the next one leads at once.

A leader stops when LOCK.EXTEND says that the lock is another's, or when its time is over and no answer came, as others
lead then. A broken connection alone does not depose it; so it takes no SESSION, and a leader that was killed is
replaced after TTL.
"""

import asyncio
import os
import signal
import sys

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from lock_asyncio import Lock, LockLost

# The leader's work, which stands for any write: what UPDATE … WHERE fence <= :fence does in a database. All writes of
# one leader have one fence, that of its election, and none gets in after one of a later leader.
WORK = """
local last = redis.call('HGET', KEYS[1], 'fence')
if last and tonumber(last) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
"""


async def lead(r: redis.asyncio.Redis, lock: Lock, name: str) -> None:
    """The leader's work. It is cancelled when the lock is lost, and when the process is told to stop."""
    fence = await lock.fence()
    print(f"{name} leads, fence {fence}", flush=True)
    try:
        while True:
            async with asyncio.timeout(lock.ttl / 1000):  # else a silent connection keeps the lead with it
                done = await r.eval(WORK, 1, f"work:{lock.name}", fence, name)
            if not done:
                print(f"{name} was refused", flush=True)
                raise LockLost(lock.name)
            await asyncio.sleep(0.1)
    finally:
        print(f"{name} leads no longer", flush=True)


async def stand(r: redis.asyncio.Redis, group: str, name: str, ttl: int) -> None:
    """Follows and leads in turns, for ever."""
    while True:
        print(f"{name} follows", flush=True)
        lock = Lock(r, group, ttl, wait=0)
        lock.token = f"{name}:{lock.token}"  # so that LOCK.INFO shows who leads
        try:
            async with lock:
                await lead(r, lock, name)
        except LockLost:
            pass
        except (redis.RedisError, TimeoutError) as error:  # a failover, say: UNBLOCKED, READONLY, NOREPLICAS
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(1)


async def main() -> None:
    group, name, ttl = sys.argv[1], sys.argv[2], int(sys.argv[3])
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    port = int(os.environ.get("REDIS_PORT", 6379))
    # A follower waits for ever. TCP keepalive notices within a minute that its connection was cut, and with the same
    # token it has its old place. Without a server it tries for ever too; a leader only for its time. (Of the
    # socket_timeout: lock_asyncio.py.)
    for_ever = Retry(ExponentialWithJitterBackoff(cap=1), -1)
    async with redis.asyncio.Redis(host="127.0.0.1", port=port, socket_timeout=None, retry=for_ever) as r:
        await stand(r, group, name, ttl)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        pass
