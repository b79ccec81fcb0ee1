"""What examples/python/lock_asyncio.py promises to who imports it, against the server whose port is in $REDIS_PORT."""

import asyncio
import os
import signal
import time
import unittest
from contextlib import suppress

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from lock_asyncio import Lock, LockLost, LockNotAcquired

port = int(os.environ["REDIS_PORT"])

# Longer than any test.
TTL = 600_000

# One whose beats come soon.
SHORT = 1500


class Case(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        options = {"port": port, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
        self.r = await self.enterAsyncContext(redis.asyncio.Redis(**options))

    async def stop_server(self, resume_after=None):
        server = (await self.r.info("server"))["process_id"]
        os.kill(server, signal.SIGSTOP)
        if resume_after is None:
            self.addCleanup(os.kill, server, signal.SIGCONT)
        else:
            asyncio.get_running_loop().call_later(resume_after, os.kill, server, signal.SIGCONT)

    async def assert_waiters(self, count):
        while (await self.r.execute_command("LOCK.INFO", "name"))[b"waiters"] != count:
            await asyncio.sleep(0.01)


class LockTest(Case):
    async def asyncSetUp(self):
        await super().asyncSetUp()
        await self.r.flushall()

    async def asyncTearDown(self):
        self.assertFalse(await self.r.exists("name"), "it is released")
        self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()})

    async def test_an_exception_of_the_body_comes_through(self):
        for error in ValueError(), LockLost():
            with self.subTest(error), self.assertRaises(type(error)) as raised:
                async with Lock(self.r, "name", TTL) as lock:
                    self.assertEqual((await self.r.get("name")).decode(), lock.token)
                    raise error
            self.assertIs(raised.exception, error)
            self.assertFalse(await self.r.exists("name"))

    async def test_it_comes_through_where_the_lock_is_lost_too(self):
        with self.assertRaises(ValueError):
            async with Lock(self.r, "name", TTL):
                await self.r.delete("name")
                raise ValueError

    async def test_a_lock_that_was_lost_before_the_end_is_an_error(self):
        with self.assertRaises(LockLost):
            async with Lock(self.r, "name", TTL):
                await self.r.delete("name")

    async def test_a_body_that_is_cancelled_releases_it(self):
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(0.5), Lock(self.r, "name", TTL):
                self.assertTrue(await self.r.exists("name"))
                await asyncio.sleep(60)

    async def test_a_cancellation_is_heard_whatever_the_client_is_at(self):
        async def body():
            async with Lock(self.r, "name", TTL) as lock:
                while True:
                    await lock.fence()

        for pause in range(100):
            task = asyncio.create_task(body())
            await asyncio.sleep(pause / 10_000)
            task.cancel()
            await asyncio.wait([task], timeout=10)
            self.assertTrue(task.cancelled(), pause)
            # Which of the two the server hears first, if it comes to that, is left to chance.
            await self.r.delete("name")

    async def test_one_that_is_cancelled_before_it_has_heard_of_its_grant_is_released(self):
        await self.stop_server(resume_after=1.5)
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(0.5), Lock(self.r, "name", TTL):
                self.fail("nobody has answered")

    async def test_one_that_is_cancelled_while_it_is_left_is_released(self):
        async def body():
            async with Lock(self.r, "name", TTL):
                asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)

        with self.assertRaises(asyncio.CancelledError):
            await asyncio.create_task(body())
        self.assertFalse(await self.r.exists("name"))

    async def test_it_is_left_though_the_heartbeat_does_not_see_that_it_is_cancelled(self):
        beating = asyncio.Event()

        class Deaf(Lock):
            """As asyncio.wait_for may be in Python 3.11."""

            async def _extend(self):
                await super()._extend()
                if hasattr(self, "_heart"):
                    beating.set()
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.3)

        async def body():
            async with Deaf(self.r, "name", SHORT):
                await beating.wait()

        await asyncio.wait_for(body(), 10)

    async def test_a_body_is_cancelled_whatever_keeps_the_heartbeat_from_extending(self):
        class Failing(Lock):
            async def _extend(self):
                if hasattr(self, "_heart"):
                    raise ValueError  # of a credential provider, say
                await super()._extend()

        with self.assertRaises(LockLost):
            async with asyncio.timeout(20), Failing(self.r, "name", SHORT):
                await asyncio.sleep(60)

    async def test_a_body_whose_lock_is_lost_is_cancelled_and_the_loss_raised(self):
        with self.assertRaises(LockLost) as raised:
            async with Lock(self.r, "name", SHORT):
                await self.r.delete("name")
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(60))
                    await asyncio.sleep(60)
        self.assertIsInstance(raised.exception.__cause__, asyncio.CancelledError)
        self.assertEqual(asyncio.current_task().cancelling(), 0)

    async def test_a_body_that_keeps_the_cancellation_to_itself_learns_of_the_loss(self):
        with self.assertRaises(LockLost):
            async with Lock(self.r, "name", SHORT) as lock:
                await self.r.delete("name")
                with self.assertRaises(asyncio.CancelledError):
                    await asyncio.sleep(60)
                self.assertFalse(lock.held)
        self.assertEqual(asyncio.current_task().cancelling(), 0)

    async def test_who_is_cancelled_by_others_besides_stays_so(self):
        async def body():
            async with Lock(self.r, "name", SHORT):
                await self.r.delete("name")
                try:
                    await asyncio.sleep(60)
                finally:
                    asyncio.current_task().cancel()
                    await asyncio.sleep(60)

        with self.assertRaises(asyncio.CancelledError):
            await asyncio.create_task(body())

    async def test_who_has_lost_it_gets_no_fence_and_it_is_lost_for_good(self):
        with self.assertRaises(LockLost):
            async with Lock(self.r, "name", TTL) as lock:
                lock.check()
                await self.r.delete("name")
                with self.assertRaises(LockLost):
                    await lock.fence()
                await self.r.set("name", lock.token)
                self.assertFalse(lock.held)
                lock.check()

    async def test_who_does_not_get_it_leaves_no_trace(self):
        before = (await self.r.info("lock_stats"))["lock_release_misses"]
        async with Lock(self.r, "name", TTL) as lock:
            for wait in None, 50:
                with self.assertRaises(LockNotAcquired):
                    async with Lock(self.r, "name", TTL, wait):
                        self.fail("it has the lock")
            self.assertEqual((await self.r.get("name")).decode(), lock.token)
        self.assertEqual((await self.r.info("lock_stats"))["lock_release_misses"], before)

    async def test_one_that_is_cancelled_while_it_waits_leaves_the_queue(self):
        async with Lock(self.r, "name", TTL) as held:
            waiting = asyncio.create_task(Lock(self.r, "name", TTL, wait=0).__aenter__())
            await self.assert_waiters(1)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await self.assert_waiters(0)
            held.check()

    async def test_it_waits_in_turn_and_counts_the_ttl_from_the_hand_over(self):
        await self.r.execute_command("LOCK.ACQUIRE", "name", "another", 3000)
        began = time.monotonic()
        async with Lock(self.r, "name", 2000, wait=0) as lock:
            self.assertGreater(time.monotonic(), began + 2)
            lock.check()

    async def test_it_is_extended_for_as_long_as_the_body_runs(self):
        async with Lock(self.r, "name", 2400) as lock:
            await asyncio.sleep(4.8)
            lock.check()


class SilentServerTest(Case):
    async def test_one_that_does_not_want_to_wait_does_not_wait_for_an_answer_for_ever(self):
        await self.stop_server()
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(20) as test, Lock(self.r, "name", TTL):
                self.fail("nobody has answered")
        self.assertFalse(test.expired())

    async def test_a_fence_that_nobody_answers_is_a_loss(self):
        async with asyncio.timeout(20) as test:
            with self.assertRaises(LockLost):
                async with Lock(self.r, "name", SHORT) as lock:
                    await self.stop_server()
                    await lock.fence()
        self.assertFalse(test.expired())


class EndOfTheServerTest(Case):
    """In the body."""

    async def test_it_is_an_error_but_does_not_hide_what_ended_the_body(self):
        came_through = False
        with self.assertRaises(redis.ConnectionError):
            async with Lock(self.r, "outer", TTL):
                with self.assertRaises(ValueError):
                    async with Lock(self.r, "inner", TTL):
                        await self.r.shutdown(nosave=True)
                        raise ValueError
                came_through = True
        self.assertTrue(came_through)


if __name__ == "__main__":
    unittest.main()
