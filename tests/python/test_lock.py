"""What examples/python/lock.py promises to who imports it, against the server whose port is in $REDIS_PORT."""

import os
import signal
import threading
import time
import unittest

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lock import Lock, LockLost, LockNotAcquired

# Longer than any test.
TTL = 600_000

port = int(os.environ["REDIS_PORT"])
r = redis.Redis(port=port)


server = r.info("server")["process_id"]


def stop_server():
    os.kill(server, signal.SIGSTOP)


def resume_server():
    os.kill(server, signal.SIGCONT)


def heartbeats():
    return [thread for thread in threading.enumerate() if thread.name.startswith("lock ")]


class LockTest(unittest.TestCase):
    def setUp(self):
        r.flushall()

    def tearDown(self):
        self.assertFalse(r.exists("name"), "it is released")
        self.assertEqual(heartbeats(), [])

    def test_whatever_ends_the_body_comes_through(self):
        for error in ValueError(), KeyboardInterrupt(), SystemExit(3), LockLost():
            with self.subTest(error), self.assertRaises(type(error)) as raised:
                with Lock(r, "name", TTL) as lock:
                    self.assertEqual(r.get("name").decode(), lock.token)
                    raise error
            self.assertIs(raised.exception, error)
            self.assertFalse(r.exists("name"))

    def test_it_comes_through_where_the_lock_is_lost_too(self):
        with self.assertRaises(ValueError):
            with Lock(r, "name", TTL):
                r.delete("name")
                raise ValueError

    def test_a_lock_that_was_lost_before_the_end_is_an_error(self):
        with self.assertRaises(LockLost):
            with Lock(r, "name", TTL):
                r.delete("name")

    def test_who_has_lost_it_gets_no_fence_and_it_is_lost_for_good(self):
        with self.assertRaises(LockLost):
            with Lock(r, "name", TTL) as lock:
                lock.check()
                r.delete("name")
                with self.assertRaises(LockLost):
                    lock.fence()
                r.set("name", lock.token)
                self.assertFalse(lock.held)
                lock.check()

    def test_its_fences_rise_and_clients_may_decode_responses(self):
        last = 0
        for client in r, redis.Redis(port=port, decode_responses=True), redis.Redis(port=port, protocol=2):
            with Lock(client, "name", TTL) as lock:
                for _ in range(3):
                    fence = lock.fence()
                    self.assertGreater(fence, last)
                    last = fence

    def test_who_does_not_get_it_leaves_no_trace(self):
        before = r.info("lock_stats")["lock_release_misses"]
        with Lock(r, "name", TTL) as lock:
            for wait in None, 50:
                with self.assertRaises(LockNotAcquired):
                    with Lock(r, "name", TTL, wait):
                        self.fail("it has the lock")
            self.assertEqual(r.get("name").decode(), lock.token)
        self.assertEqual(r.info("lock_stats")["lock_release_misses"], before)

    def test_it_waits_in_turn_and_counts_the_ttl_from_the_hand_over(self):
        ttl = 2000
        r.execute_command("LOCK.ACQUIRE", "name", "another", ttl + 1000)
        began = time.monotonic()
        with Lock(r, "name", ttl, wait=0) as lock:
            self.assertGreater(time.monotonic(), began + ttl / 1000)
            lock.check()

    def test_it_is_extended_for_as_long_as_the_body_runs(self):
        ttl = 2400
        with Lock(r, "name", ttl) as lock:
            end = time.monotonic() + 2 * ttl / 1000
            while time.monotonic() < end:
                lock.check()
                time.sleep(0.1)

    def test_it_is_for_one_use(self):
        lock = Lock(r, "name", TTL)
        with lock:
            pass
        with self.assertRaises(RuntimeError):
            with lock:
                self.fail("it is used twice")

    def test_a_signal_that_comes_while_it_is_left_does_not_keep_it_from_being_released(self):
        beating, told = threading.Event(), threading.Event()

        class Slow(Lock):
            """One whose beats take until it is told."""

            def _heartbeat(self):
                beating.set()
                told.wait()

        def terminate(*_):
            raise SystemExit

        self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, terminate))
        with self.assertRaises(SystemExit):
            with Slow(r, "name", TTL):
                beating.wait()
                threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
        told.set()
        self.assertFalse(r.exists("name"))
        for thread in heartbeats():
            thread.join()

    def test_one_whose_grant_was_not_heard_of_is_released(self):
        client = redis.Redis(port=port, socket_timeout=0.5, retry=Retry(NoBackoff(), 0))
        client.ping()
        stop_server()
        threading.Timer(1.5, resume_server).start()
        with self.assertRaises(redis.TimeoutError):
            with Lock(client, "name", TTL):
                self.fail("nobody has answered")

    def test_a_session_needs_a_connection_of_its_own(self):
        with self.assertRaises(ValueError):
            Lock(r, "name", TTL, session=True)

    def test_a_session_ends_with_its_connection(self):
        client = redis.Redis(port=port, single_connection_client=True)
        with self.assertRaises(LockLost):
            with Lock(client, "name", TTL, session=True) as lock:
                self.assertEqual(r.execute_command("LOCK.INFO", "name")[b"session"], 1)
                r.client_kill_filter(_id=client.client_id())
                while r.exists("name"):
                    time.sleep(0.01)
                lock.fence()


class SilentServerTest(unittest.TestCase):
    """The server says nothing from the body on. The client has patience for a wait of half a minute."""

    def test_the_loss_is_noticed_and_it_is_left_in_time(self):
        self.assert_left_in_time(self.work)

    def test_a_fence_and_an_end_that_nobody_answers_are_no_longer_awaited(self):
        self.assert_left_in_time(Lock.fence)

    def work(self, lock):
        while True:
            lock.check()
            time.sleep(0.01)

    def assert_left_in_time(self, body):
        with self.assertRaises((LockLost, redis.TimeoutError)):
            with Lock(redis.Redis(port=port, socket_timeout=35), "name", 2000) as lock:
                self.addCleanup(resume_server)
                stop_server()
                began = time.monotonic()
                body(lock)
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(heartbeats(), [])


class EndOfTheServerTest(unittest.TestCase):
    """In the body."""

    def test_it_is_an_error_but_does_not_hide_what_ended_the_body(self):
        client = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))
        came_through = False
        with self.assertRaises(redis.ConnectionError):
            with Lock(client, "outer", TTL):
                with self.assertRaises(ValueError):
                    with Lock(client, "inner", TTL):
                        r.shutdown(nosave=True)
                        raise ValueError
                came_through = True
        self.assertTrue(came_through)
        self.assertEqual(heartbeats(), [])


if __name__ == "__main__":
    unittest.main()
