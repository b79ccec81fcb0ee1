"""The snippets for redis-py in README.md, and what it says there of waiting."""

import re
import sys
import uuid

import redis

readme = open("README.md").read()
commands, worker, library = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
r = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)


def run(snippet, **names):
    names["r"] = r
    exec(snippet, names)
    return names


token = str(uuid.uuid4())
mine = run(commands, token=token)
assert mine["held"][0] == token
assert mine["fence"] > mine["held"][1] > 0
assert mine["released"] == 1
assert r.exists("invoice:7") == 0

r.execute_command("LOCK.ACQUIRE", "invoice:7", "another", 60000)
refused = run(commands, token=token)
assert refused["held"] is None
assert refused["fence"] is None
assert refused["released"] == 0
r.execute_command("LOCK.RELEASE", "invoice:7", "another")

assert run(library)["fence"] > mine["fence"]
assert r.exists("invoice:7") == 0


sys.path.append("examples/python")
from lock import Lock, LockLost, LockNotAcquired  # noqa: E402

paid = []
with_lock = {"Lock": Lock, "items": [7, 8], "pay": lambda item, fence: paid.append((item, fence))}
run(worker, **with_lock)
assert [item for item, _ in paid] == [7, 8]
assert mine["fence"] < paid[0][1] < paid[1][1]
assert r.exists("invoice:7") == 0

try:
    run(worker, **with_lock | {"pay": lambda item, fence: r.delete("invoice:7")})
except LockLost:
    pass
else:
    raise AssertionError("the loss of the lock went unnoticed")

r.execute_command("LOCK.ACQUIRE", "invoice:7", "another", 60000)
try:
    run(worker.replace("wait=30_000", "wait=1"), **with_lock)
except LockNotAcquired:
    pass
else:
    raise AssertionError("two held the lock")
r.execute_command("LOCK.RELEASE", "invoice:7", "another")


def wait(client):
    """Longer than the client has patience by default."""
    return client.execute_command("LOCK.ACQUIRE", "invoice:7", token, 30000, "BLOCK", 5500)


patience, repeats, option = re.search(
    r"\| redis-py 8\.1 \| (\d+) s, and repeats (\w+) times \| `redis\.Redis\((.*?)\)` \|", readme
).groups()
assert redis.Redis().get_connection_kwargs()["socket_timeout"] == int(patience)
assert (r.get_retry().get_retries(), repeats) == (10, "ten")
r.execute_command("LOCK.ACQUIRE", "invoice:7", "another", 60000)
patient = eval(f"redis.Redis(unix_socket_path=sys.argv[1], {option})")
assert wait(patient) is None
impatient = redis.Redis(unix_socket_path=sys.argv[1], retry=None)
try:
    wait(impatient)
except redis.TimeoutError:
    pass
else:
    raise AssertionError("redis-py waited")
r.execute_command("LOCK.RELEASE", "invoice:7", "another")
