"""What E2B's Python SDKs of version 2 share, by address or by name."""

import asyncio
import os

from e2b import AsyncSandbox, CommandExitException, Sandbox


def case(name):
    print(f"ok {name}", flush=True)


sandbox = Sandbox.create(timeout=120, metadata={"version": "two"}, envs={"X": "1"})
assert sandbox.is_running()
result = sandbox.commands.run("echo out $X; echo err >&2")
assert (result.stdout, result.stderr) == ("out 1\n", "err\n"), result
try:
    sandbox.commands.run("exit 3")
    raise AssertionError("exit 3 was a success")
except CommandExitException as error:
    assert error.exit_code == 3
case("commands")

sandbox.files.write("a/b.txt", "content")
assert sandbox.files.read("a/b.txt") == "content"
sandbox.files.write("large", b"x" * 20_000_000)
assert sandbox.commands.run("stat -c %s large").stdout == "20000000\n"
assert len(sandbox.files.read("large", format="bytes")) == 20_000_000
watch = sandbox.files.watch_dir("a")
sandbox.files.write("a/new", "x")
assert [event.type.value for event in watch.get_new_events()] == ["create", "chmod", "write"]
watch.stop()
case("files")

chunks = []
terminal = sandbox.pty.create(size=__import__("e2b").PtySize(rows=20, cols=80))
sandbox.pty.send_stdin(terminal.pid, b"echo six $((6*7)); exit\n")
for _, _, data in terminal:
    if data:
        chunks.append(data)
assert b"six 42" in b"".join(chunks), chunks
case("terminals")

assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo again").stdout == "again\n"
assert sandbox.kill() and not sandbox.is_running()
case("life")


async def asynchronous():
    one = await AsyncSandbox.create(timeout=60)
    assert (await one.commands.run("echo later")).stdout == "later\n"
    assert await one.kill()


asyncio.run(asynchronous())
case("asynchronous")

# Without the interpreter's own end, at which the SDK's HTTP library sometimes aborts.
os._exit(0)
