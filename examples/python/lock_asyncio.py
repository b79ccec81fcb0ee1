"""A lock for redis.asyncio (`pip install redis==8.1.0`, Python 3.11): an async context manager that extends the lock as
long as its body runs, and cancels the body when the lock is lost.

    r = redis.asyncio.Redis(socket_timeout=None)  # what needs a bound gets it from asyncio.timeout
    async with Lock(r, "invoice:7", ttl=30_000, wait=30_000) as lock:  # in milliseconds
        await pay(7, fence=await lock.fence())  # UPDATE … SET paid = true, fence = :f WHERE id = 7 AND fence < :f

With a socket_timeout, redis-py would give up a longer wait, and send by asyncio.wait_for, in which Python 3.11 may
swallow a cancellation (3.12 does not): a body whose lock is lost would go on.

To use it, import this module, or copy the class with its exceptions. As a program it writes a report in steps, under
the lock:

    python3 lock_asyncio.py NAME TTL WAIT STEPS

TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock, and
with 1 where the lock was lost: the rest of the report is then another's to write.
"""

import asyncio
import os
import signal
import sys
import time
import uuid
from contextlib import suppress

import redis.asyncio


class LockNotAcquired(Exception):
    """Another holds the lock."""


class LockLost(Exception):
    """The lock is held no longer, or nobody knows: write nothing more."""


class Lock:
    """One hold of the lock `name`. Each hold needs a Lock of its own, as its token must be new.

    `ttl` is how long the lock outlives a process that has died, and `wait` how long to queue for it, both in
    milliseconds. A wait of None is none, and 0 is for ever. Entering raises LockNotAcquired if another still holds it
    then. Leaving releases it, and raises LockLost if it was lost before; an exception of the body's own goes first.

    A body whose lock is lost is cancelled, and LockLost raised in place of the CancelledError, as asyncio.timeout does.
    What blocks the event loop stops the heartbeat, and this too: the fence is what keeps a late write out.
    """

    def __init__(self, r: redis.asyncio.Redis, name: str, ttl: int = 30_000, wait: int | None = None):
        self.name, self.ttl = name, ttl
        self.token = str(uuid.uuid4())
        self._redis = r
        self._options = [] if wait is None else ["BLOCK", wait]
        self._patience = None if wait == 0 else (wait or 0) / 1000 + 5
        self._until = 0.0
        self._lost = False
        self._cancelled = self._left = False

    @property
    def held(self) -> bool:
        """Whether the lock can be counted on now. Asks nobody: the server has promised the ttl."""
        return not self._lost and time.monotonic() < self._until

    def check(self) -> None:
        """Raises LockLost unless the lock is held: after what may have blocked the event loop."""
        if not self.held:
            raise LockLost(self.name)

    async def fence(self) -> int:
        """A number greater than all before it, for the storage to compare; ask right before each write."""
        while True:
            self.check()
            with suppress(TimeoutError):  # ask again, by another connection, as long as the lock's time lasts
                async with asyncio.timeout(self.ttl / 3000):
                    fence = await self._call("LOCK.FENCE")
                    break
        if fence is None:
            self._lost = True
            raise LockLost(self.name)
        return fence

    async def __aenter__(self) -> "Lock":
        try:
            async with asyncio.timeout(self._patience):
                # After a lost connection redis-py sends the command again. The same token gets the same lock, or place.
                granted = await self._call("LOCK.ACQUIRE", self.ttl, *self._options) is not None
            if granted:
                async with asyncio.timeout(self.ttl / 1000):
                    await self._extend()  # after a wait nobody knows when the ttl began
                self.check()
        except BaseException:
            await self._release(quietly=True)  # who heard no answer may have been granted it
            raise
        if not granted:
            raise LockNotAcquired(self.name)
        self._body = asyncio.current_task()
        self._cancelling = self._body.cancelling()
        self._heart = asyncio.create_task(self._heartbeat())
        return self

    async def __aexit__(self, kind, error, traceback) -> None:
        self._left = True  # a heartbeat at its end may not see its own cancellation
        self._heart.cancel()
        # More cancellations than the heartbeat's own are somebody else's, and must go on.
        ours = self._cancelled and self._body.uncancel() <= self._cancelling
        leaving = asyncio.create_task(self._leave(quietly=error is not None))
        try:
            released = await asyncio.shield(leaving)
        except asyncio.CancelledError:  # the release must be sent all the same
            await asyncio.wait([leaving])
            raise
        if (error is None and not released) or (ours and isinstance(error, asyncio.CancelledError)):
            raise LockLost(self.name) from error

    async def _call(self, command: str, *arguments):
        return await self._redis.execute_command(command, self.name, self.token, *arguments)

    async def _extend(self) -> None:
        sent = time.monotonic()  # not when the answer comes: by then some of the ttl is over
        if await self._call("LOCK.EXTEND", self.ttl):
            self._until = sent + self.ttl / 1000
        else:
            self._lost = True

    async def _heartbeat(self) -> None:
        third, last = self.ttl / 3000, time.monotonic()
        while self.held and not self._left:  # the cancellation may have been swallowed
            await asyncio.sleep(min(last + third, self._until) - time.monotonic())
            last = time.monotonic()
            # No answer says nothing of the lock: ask again, as long as its time lasts. What else may go wrong, in a
            # credential provider, say, must not keep the body from being cancelled.
            with suppress(Exception):
                async with asyncio.timeout(min(third, self._until - last)):
                    await self._extend()
        self._cancelled = not self._left and self._body.cancel()

    async def _leave(self, quietly: bool) -> bool:
        await asyncio.wait([self._heart])  # it leaves no task behind
        return await self._release(quietly)

    async def _release(self, quietly: bool) -> bool:
        try:
            async with asyncio.timeout(min(self.ttl / 1000, 5)):  # the ttl ends the lock in any case
                return bool(await self._call("LOCK.RELEASE"))
        except Exception:
            if quietly:
                return False  # the ttl ends the lock, and what went wrong first is what must be heard
            raise


# The part of a database, here in Lua: UPDATE … WHERE fence < :fence
WRITE = """
local last = redis.call('HGET', KEYS[1], 'fence')
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
return 1
"""


async def write_report(r: redis.asyncio.Redis, lock: Lock, steps: int) -> None:
    for step in range(1, steps + 1):
        await asyncio.sleep(0.1)  # the work
        lock.check()
        fence = await lock.fence()
        async with asyncio.timeout(30):  # else a silent connection keeps the lock with it
            written = await r.eval(WRITE, 1, f"report:{lock.name}", fence, step)
        if not written:
            raise LockLost(lock.name)  # refused: a later holder has written
        print(f"step {step}, fence {fence}", flush=True)


async def main() -> int:
    name, (ttl, wait, steps) = sys.argv[1], map(int, sys.argv[2:])
    # Kubernetes and systemd end a process by SIGTERM. Cancelled, it leaves the `async with`, and so releases the lock.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    port = int(os.environ.get("REDIS_PORT", 6379))
    try:
        async with (
            redis.asyncio.Redis(host="127.0.0.1", port=port, socket_timeout=None) as r,
            Lock(r, name, ttl, wait or None) as lock,
        ):
            print(f"acquired, fence {await lock.fence()}", flush=True)
            await write_report(r, lock, steps)
    except LockNotAcquired:
        print("skipped: another holds the lock")
        return 75
    except LockLost:
        print("the lock was lost", file=sys.stderr)
        return 1
    print("released")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
