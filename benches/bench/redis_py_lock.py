"""Clients of redis-py that circle one lock without pause, by its own Lock: what benches/bench/contention.rs measures.

    redis_py_lock.py PORT CLIENTS SECONDS

Connects them, prints `ready`, and begins upon a line. It prints `done` when the time is over, and upon another line what
happened: who asked for the lock and when, and when it got it, if it did, in nanoseconds. The clients are tasks of one
thread, each with a connection of its own.
"""

import asyncio
import os
import random
import sys
import time

from redis.asyncio import Redis

# Nobody waits for so long: locks end by release.
TIMEOUT = 3600
# After so many seconds redis-py asks again.
SLEEP = 0.1
# How many connect at a time.
CONNECTING = 100


async def circle(r: Redis, client: int, log: list) -> None:
    # As if they had not all begun in the same moment.
    await asyncio.sleep(random.uniform(0, SLEEP))
    while True:
        entry = [client, time.monotonic_ns(), None]
        log.append(entry)
        lock = r.lock("lock", timeout=TIMEOUT, sleep=SLEEP)
        await lock.acquire()
        entry[2] = time.monotonic_ns()
        await lock.release()


async def main(port: int, count: int, seconds: float) -> None:
    clients = [Redis(port=port, single_connection_client=True, socket_timeout=None) for _ in range(count)]
    for start in range(0, count, CONNECTING):
        await asyncio.gather(*(r.ping() for r in clients[start : start + CONNECTING]))
    print("ready", flush=True)
    sys.stdin.readline()
    log = []
    tasks = [asyncio.create_task(circle(r, client, log)) for client, r in enumerate(clients)]
    finished, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in finished:
        task.result()
    # No task goes on meanwhile: there is one thread.
    print("done", flush=True)
    sys.stdin.readline()
    for entry in log:
        print(*(word for word in entry if word is not None))
    sys.stdout.flush()
    # Thousands of connections end at once.
    os._exit(0)


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
