"""E2B's Python SDK 1.x, which knows servers by their domain alone."""

import httpx
from e2b import CommandExitException, Sandbox


def case(name):
    print(f"ok {name}", flush=True)


sandbox = Sandbox(timeout=120, metadata={"version": "one"}, envs={"X": "1"})
assert sandbox.is_running()
case("create")

result = sandbox.commands.run("echo out $X; echo err >&2; whoami")
assert (result.exit_code, result.stdout, result.stderr) == (0, "out 1\nuser\n", "err\n"), result
try:
    sandbox.commands.run("exit 3")
    raise AssertionError("exit 3 was a success")
except CommandExitException as error:
    assert error.exit_code == 3
process = sandbox.commands.run("cat", background=True)
sandbox.commands.send_stdin(process.pid, "typed\n")
for stdout, _, _ in process:
    assert stdout == "typed\n", stdout
    break
assert sandbox.commands.kill(process.pid)
case("commands")

sandbox.files.write("one/two.txt", "content")
assert sandbox.files.read("one/two.txt") == "content"
assert [entry.name for entry in sandbox.files.list("one")] == ["two.txt"]
sandbox.files.rename("one/two.txt", "three.txt")
assert not sandbox.files.exists("one/two.txt") and sandbox.files.exists("three.txt")
watch = sandbox.files.watch_dir("one")
sandbox.files.write("one/new", "x")
assert [event.type.value for event in watch.get_new_events()] == ["create", "chmod", "write"]
watch.stop()
case("files")

sandbox.commands.run("python3 -m http.server 3000", background=True)
sandbox.commands.run("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 3000))'; do sleep 0.1; done")
answer = httpx.get(f"https://{sandbox.get_host(3000)}/three.txt")
assert (answer.status_code, answer.text) == (200, "content"), answer
case("ports")

assert sandbox.sandbox_id in [one.sandbox_id for one in Sandbox.list()]
sandbox.set_timeout(60)
again = Sandbox.connect(sandbox.sandbox_id)
assert again.commands.run("echo again").stdout == "again\n"
case("connect")

sandbox.kill()
assert not sandbox.is_running()
case("kill")
