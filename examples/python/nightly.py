"""The nightly batch that every pod starts, and one must run: once, also where the pods' clocks differ.

    python3 nightly.py [--session] [--unreachable {stop,run}] NAME RUN TTL STEPS  # with lock.py beside it

NAME is the job's, and its lock's. RUN is what is to be done once: the date of the schedule, say (`$(date -u +%F)`, but
where pods may start on either side of midnight). The job has STEPS steps of 100 ms; replace `settle` by yours. TTL is
in milliseconds. The server is at 127.0.0.1, port $REDIS_PORT (6379). It prints each step with its fence, and then:

    done                      exit code 0
    skipped: another is at it 0, as a skip is what the others are there for: a Kubernetes Job of one has not failed.
                              It is counted: see `LOCK.INFO NAME`, and the event lock.refuse.
    skipped: it is done       0: the lock was free again, as this pod came when another had finished
    the lock was lost         1, as for any other error: the run does not count as done, and may be started again
    Redis cannot be reached   69, and the job has not run. With --unreachable=run it runs, and prints `done alone`.
    Redis grants no lock      76, and the job has not run: Redis is there, but replies an error. A wrong password, say,
                              LOADING, or RECOVERING: then it may be started again soon.

--unreachable says what to do without Redis. A settlement stops. A clean-up, which may run twice, runs: without lock or
fence, and maybe on each pod. (A lock that is lost while the job runs ends it either way.)

--session ends the lock together with the connection, so that after a kill the next start runs at once. Without, it is
skipped until the TTL is over. Do not use it behind a proxy.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lock import Lock, LockLost, LockNotAcquired

# How long it is known that a run is done, in seconds: longer than any clock is wrong, or any start late.
KEEP = 7 * 24 * 3600

# Only the holder says so: what another has run since it will say itself.
DONE = """
if not redis.call('LOCK.FENCE', KEYS[1], ARGV[1]) then return 0 end
redis.call('SET', KEYS[2], 'done', 'EX', ARGV[2])
return 1
"""


class Unreachable(Exception):
    """Redis cannot be reached, and the job has not run."""


class Refused(Exception):
    """Redis grants no lock, and the job has not run."""


def run_once(
    job: Callable[[Lock | None], None],
    name: str,
    run: str,
    ttl: int = 30_000,
    session: bool = False,
    unreachable: str = "stop",
    **server,
) -> str:
    """Calls job(lock) unless another is at it or has done this run; job(None) where it is to run without Redis.

    A lock keeps two from running at once, and remembers nothing: a job of two seconds is over when a pod comes whose
    clock is three seconds behind. So a run that is done is recorded, and looked up under the lock. This record is as
    good as Redis' memory. Where a second run costs money, put it into the job's own database instead, in the
    transaction that does the work: INSERT INTO runs (job, run) …, with a primary key of both.
    """
    # The braces keep both keys on one node of a cluster.
    record = f"{name}:{run}" if "{" in name else f"{{{name}}}:{run}"
    # By default redis-py repeats ten times, which takes a minute where Redis is silent.
    patience = {"socket_timeout": min(ttl / 1000, 5), "retry": Retry(NoBackoff(), 1)}
    outcome = ""
    try:
        with ExitStack() as stack:
            try:
                r = stack.enter_context(redis.Redis(single_connection_client=session, **patience, **server))
                lock = stack.enter_context(Lock(r, name, ttl, session=session))
            except LockNotAcquired:
                return "skipped: another is at it"
            except redis.RedisError as error:
                # Not their subclasses: those are replies, of a server that may have granted the lock to another.
                if type(error) not in (redis.ConnectionError, redis.TimeoutError):
                    raise Refused(error) from error
                if unreachable == "stop":
                    raise Unreachable(error) from error
                print(f"running without lock and fence: {error}", file=sys.stderr, flush=True)
                job(None)
                return "done alone"
            if r.exists(record):
                outcome = "skipped: it is done"
            else:
                job(lock)
                if not r.eval(DONE, 2, name, record, lock.token, KEEP):
                    raise LockLost(name)
                outcome = "done"
    except (LockLost, redis.RedisError):
        if not outcome:  # else only the release has failed, or was repeated, as its reply was lost
            raise
    return outcome


def settle(lock: Lock | None, steps: int) -> None:
    """The job, and what it must do: look at the lock between steps, and write with a fence."""
    for step in range(1, steps + 1):
        time.sleep(0.1)
        if lock is None:
            print(f"step {step}, no fence", flush=True)
        else:
            lock.check()
            print(f"step {step}, fence {lock.fence()}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(usage="nightly.py [--session] [--unreachable {stop,run}] NAME RUN TTL STEPS")
    parser.add_argument("--session", action="store_true")
    parser.add_argument("--unreachable", choices=["stop", "run"], default="stop")
    parser.add_argument("name")
    parser.add_argument("run")
    parser.add_argument("ttl", type=int)
    parser.add_argument("steps", type=int)
    options = parser.parse_args()
    # Kubernetes and systemd end a process by SIGTERM. As an exception it leaves the `with`, and so releases the lock.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        print(
            run_once(
                lambda lock: settle(lock, options.steps),
                options.name,
                options.run,
                options.ttl,
                options.session,
                options.unreachable,
                host="127.0.0.1",
                port=int(os.environ.get("REDIS_PORT", 6379)),
            )
        )
    except LockLost:
        print("the lock was lost", file=sys.stderr)
        return 1
    except Unreachable as error:
        print(f"Redis cannot be reached, and the job has not run: {error}", file=sys.stderr)
        return os.EX_UNAVAILABLE
    except Refused as error:
        print(f"Redis grants no lock, and the job has not run: {error}", file=sys.stderr)
        return os.EX_PROTOCOL
    return 0


if __name__ == "__main__":
    sys.exit(main())
