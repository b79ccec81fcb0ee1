"""The snippets for redis-py in README.md."""

import re
import sys
import uuid

import redis

commands, library = re.findall(r"```python\n(.*?)```", open("README.md").read(), re.DOTALL)
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
