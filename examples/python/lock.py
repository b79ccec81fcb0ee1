"""A lock for redis-py (`pip install redis==8.1.0`): a context manager that extends the lock as long as its body runs.

    r = redis.Redis(socket_timeout=35)  # in seconds, and more than the wait: redis-py must not give up first
    with Lock(r, "invoice:7", ttl=30_000, wait=30_000) as lock:  # in milliseconds
        pay(7, fence=lock.fence())  # UPDATE … SET paid = true, fence = :f WHERE id = 7 AND fence < :f

To use it, import this module, or copy the class with its exceptions. As a program it writes a report in steps, under
the lock:

    python3 lock.py NAME TTL WAIT STEPS

TTL and WAIT are in milliseconds, and a WAIT of 0 is none. The server is at 127.0.0.1, port $REDIS_PORT (6379). It
prints `acquired`, each step with its fence and `released`, and exits with 0; with 75 where another holds the lock, and
with 1 where the lock was lost: the rest of the report is then another's to write.
"""

import os
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class LockNotAcquired(Exception):
    """Another holds the lock."""


class LockLost(Exception):
    """The lock is held no longer, or nobody knows: write nothing more."""


class Lock:
    """One hold of the lock `name`. Each hold needs a Lock of its own, as its token must be new.

    `ttl` is how long the lock outlives a process that has died, and `wait` how long to queue for it, both in
    milliseconds. A wait of None is none, and 0 is for ever. Entering raises LockNotAcquired if another still holds it
    then. Leaving releases it, and raises LockLost if it was lost before; an exception of the body's own goes first.

    What follows the wait goes over connections of its own, of the kind that `r` makes: the patience that `r` needs for
    a wait would else hold up the beats, and the end, for as long on a connection that is silent.

    With `session` the lock ends together with the connection, at once where a process dies. `r` must then be a
    redis.Redis(single_connection_client=True). All goes over this connection, with the patience of `r`.
    """

    def __init__(self, r: redis.Redis, name: str, ttl: int = 30_000, wait: int | None = None, session: bool = False):
        self.name, self.ttl = name, ttl
        self.token = str(uuid.uuid4())
        if session and not r.connection:
            raise ValueError("a session needs a redis.Redis(single_connection_client=True)")
        self._redis = self._patient = r
        if not session:
            patience = min(ttl / 3000, 5)  # not longer than until the next beat
            retry = Retry(NoBackoff(), 1, (redis.ConnectionError,))  # on one that was cut, not on a silent one
            brief = {"socket_timeout": patience, "socket_connect_timeout": patience, "retry": retry}
            options = r.get_connection_kwargs() | brief
            self._redis = redis.Redis.from_pool(redis.ConnectionPool(r.connection_pool.connection_class, **options))
        self._options = ([] if wait is None else ["BLOCK", wait]) + (["SESSION"] if session else [])
        self._until = 0.0
        self._lost = False
        self._done = threading.Event()
        self._heart = threading.Thread(target=self._heartbeat, name=f"lock {name}", daemon=True)

    @property
    def held(self) -> bool:
        """Whether the lock can be counted on now. Asks nobody: the server has promised the ttl."""
        return not self._lost and time.monotonic() < self._until

    def check(self) -> None:
        """Raises LockLost unless the lock is held: between two steps of the work."""
        if not self.held:
            raise LockLost(self.name)

    def fence(self) -> int:
        """A number greater than all before it, for the storage to compare; ask right before each write."""
        while True:
            self.check()
            with suppress(redis.TimeoutError):  # ask again, by another connection, as long as the lock's time lasts
                fence = self._call("LOCK.FENCE")
                break
        if fence is None:
            self._lost = True
            raise LockLost(self.name)
        return fence

    def __enter__(self) -> "Lock":
        try:
            # After a lost connection redis-py sends the command again. The same token gets the same lock, or place.
            acquire = "LOCK.ACQUIRE", self.name, self.token, self.ttl, *self._options
            granted = self._patient.execute_command(*acquire) is not None
            if granted:
                self._extend()  # after a wait nobody knows when the ttl began
                self.check()
                self._heart.start()
        except BaseException:
            self._release(quietly=True)  # who heard no answer may have been granted it
            raise
        if not granted:
            raise LockNotAcquired(self.name)
        return self

    def __exit__(self, kind, error, traceback) -> None:
        try:
            self._done.set()
            self._heart.join()  # else it would extend what is released, which counts as a miss
        finally:  # also if a signal ends the join
            released = self._release(quietly=error is not None)
        if error is None and not released:
            raise LockLost(self.name)

    def _call(self, command: str, *arguments):
        return self._redis.execute_command(command, self.name, self.token, *arguments)

    def _extend(self) -> None:
        sent = time.monotonic()  # not when the answer comes: by then some of the ttl is over
        if self._call("LOCK.EXTEND", self.ttl):
            self._until = sent + self.ttl / 1000
        else:
            self._lost = True

    def _heartbeat(self) -> None:
        third, last = min(self.ttl / 3000, threading.TIMEOUT_MAX), time.monotonic()
        while self.held and not self._done.wait(last + third - time.monotonic()):
            last = time.monotonic()
            try:
                self._extend()
            except redis.RedisError:
                pass  # no answer says nothing of the lock: ask again, as long as its time lasts

    def _release(self, quietly: bool) -> bool:
        try:
            return bool(self._call("LOCK.RELEASE"))
        except Exception:
            if quietly:
                return False  # the ttl ends the lock, and what went wrong first is what must be heard
            raise
        finally:
            if self._redis is not self._patient:
                self._redis.close()


# The part of a database, here in Lua: UPDATE … WHERE fence < :fence
WRITE = """
local last = redis.call('HGET', KEYS[1], 'fence')
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'step', ARGV[2])
return 1
"""


def write_report(r: redis.Redis, lock: Lock, steps: int) -> None:
    for step in range(1, steps + 1):
        time.sleep(0.1)  # the work
        lock.check()
        fence = lock.fence()
        if not r.eval(WRITE, 1, f"report:{lock.name}", fence, step):
            raise LockLost(lock.name)  # refused: a later holder has written
        print(f"step {step}, fence {fence}", flush=True)


def main() -> int:
    name, (ttl, wait, steps) = sys.argv[1], map(int, sys.argv[2:])
    # Kubernetes and systemd end a process by SIGTERM. As an exception it leaves the `with`, and so releases the lock.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    port, retry = int(os.environ.get("REDIS_PORT", 6379)), Retry(NoBackoff(), 1)
    r = redis.Redis("127.0.0.1", port, socket_timeout=wait / 1000 + 5, retry=retry)  # ten repeats are a minute
    try:
        with Lock(r, name, ttl, wait or None) as lock:
            print(f"acquired, fence {lock.fence()}", flush=True)
            write_report(r, lock, steps)
    except LockNotAcquired:
        print("skipped: another holds the lock")
        return 75
    except LockLost:
        print("the lock was lost", file=sys.stderr)
        return 1
    print("released")
    return 0


if __name__ == "__main__":
    sys.exit(main())
