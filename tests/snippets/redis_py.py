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


program = run(worker)
program["TTL"] = 3000
run_locked = program["run_locked"]
fences = []


def work(fence, lost):
    """Takes longer than the ttl."""
    fences.append(fence)
    assert not lost.wait(4)
    assert r.exists("invoice:7") == 1


assert run_locked("invoice:7", work) is True
assert fences[0] > mine["fence"]
assert r.exists("invoice:7") == 0


def robbed(fence, lost):
    r.delete("invoice:7")
    assert lost.wait(30)


try:
    run_locked("invoice:7", robbed)
except RuntimeError:
    pass
else:
    raise AssertionError("the loss of the lock went unnoticed")


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
