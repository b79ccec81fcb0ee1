"""The SQL in README.md: what a fence refuses, and what it lets through."""

import re
import sqlite3
import sys

import redis

blocks = re.findall(r"```sql\n(.*?)```", open("README.md").read(), re.DOTALL)
add_column, overwrite, read_and_write, insert = ([each.strip() for each in block.split(";")[:-1]] for block in blocks)
claim, read, write = read_and_write
r = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)
database = sqlite3.connect(":memory:", isolation_level=None)


def acquire(token):
    """The fence of a new holder, whoever held the lock before."""
    r.delete("lock")
    return r.execute_command("LOCK.ACQUIRE", "lock", token, 60000)[1]


def rows(statement, **values):
    return database.execute(statement, {"id": 1, **values}).rowcount


def balance():
    return database.execute(read, {"id": 1}).fetchone()[0]


def account_of(amount):
    database.execute("DROP TABLE IF EXISTS accounts")
    database.execute("CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)")
    database.execute("INSERT INTO accounts VALUES (1, ?)", [amount])
    database.execute(*add_column)


def late_write_is_refused():
    account_of(100)
    a = acquire("a")
    b = acquire("b")
    assert rows(*overwrite, balance=150, fence=b) == 1
    assert rows(*overwrite, balance=130, fence=a) == 0
    assert balance() == 150


def second_write_needs_a_second_number():
    account_of(100)
    first = acquire("a")
    assert rows(*overwrite, balance=110, fence=first) == 1
    assert rows(*overwrite, balance=120, fence=first) == 0
    second = r.execute_command("LOCK.FENCE", "lock", "a")
    assert rows(*overwrite, balance=120, fence=second) == 1


def without_a_claim_an_older_holder_can_write_between_read_and_write():
    account_of(100)
    a = acquire("a")
    a_read = balance()
    b = acquire("b")
    b_read = balance()
    assert rows(*overwrite, balance=a_read + 30, fence=a) == 1
    assert rows(*overwrite, balance=b_read + 50, fence=b) == 1
    assert balance() == 150


def with_a_claim_it_cannot():
    account_of(100)
    a = acquire("a")
    assert rows(claim, fence=a) == 1
    a_read = balance()
    b = acquire("b")
    assert rows(claim, fence=b) == 1
    b_read = balance()
    assert rows(write, balance=a_read + 30, fence=a) == 0
    assert rows(write, balance=b_read + 50, fence=b) == 1
    assert rows(write, balance=b_read + 50, fence=b) == 1
    assert rows(claim, fence=a) == 0

    again = acquire("a again")
    assert rows(claim, fence=again) == 1
    assert rows(write, balance=balance() + 30, fence=again) == 1
    assert balance() == 180


def rows_are_inserted_under_a_claim():
    database.execute("CREATE TABLE jobs (id BIGINT PRIMARY KEY, fence BIGINT NOT NULL)")
    database.execute("CREATE TABLE payments (job BIGINT, amount BIGINT)")
    database.execute("INSERT INTO jobs VALUES (1, 0)")

    def pay(fence, amount):
        begin, claim_the_job, insert_one, commit = insert
        database.execute(begin)
        if rows(claim_the_job, fence=fence) == 0:
            database.execute("ROLLBACK")
            return False
        rows(insert_one, amount=amount)
        database.execute(commit)
        return True

    a = acquire("a")
    assert pay(a, 10)
    assert pay(a, 11)
    b = acquire("b")
    assert pay(b, 20)
    assert not pay(a, 12)
    assert database.execute("SELECT amount FROM payments").fetchall() == [(10,), (11,), (20,)]


def a_refused_holder_asks_who_is_right():
    account_of(100)
    acquire("a")
    b = acquire("b")
    ahead = b + 1_000_000
    database.execute("UPDATE accounts SET fence = ?", [ahead])
    assert rows(*overwrite, balance=150, fence=b) == 0
    assert r.execute_command("LOCK.FENCE", "lock", "a", "AFTER", ahead) is None
    passed = r.execute_command("LOCK.FENCE", "lock", "b", "AFTER", ahead)
    assert rows(*overwrite, balance=150, fence=passed) == 1


late_write_is_refused()
second_write_needs_a_second_number()
without_a_claim_an_older_holder_can_write_between_read_and_write()
with_a_claim_it_cannot()
rows_are_inserted_under_a_claim()
a_refused_holder_asks_who_is_right()
