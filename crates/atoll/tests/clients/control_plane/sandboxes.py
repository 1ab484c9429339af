"""What E2B's python SDK does with the control plane alone: no command is run.

Prints `ok NAME` for each case; any failure ends it.
"""

import asyncio
import os
import time

import e2b
from e2b import AsyncSandbox, Sandbox, SandboxQuery, SandboxState


def case(name):
    print(f"ok {name}", flush=True)


def expect(error, work):
    try:
        work()
    except error as raised:
        return raised
    raise AssertionError(f"{error} was not raised")


def synchronous():
    sandbox = Sandbox.create(timeout=120, metadata={"a b": "c&d/ü+%"}, envs={"X": "1"})
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id, info
    assert info.metadata == {"a b": "c&d/ü+%"}, info
    assert info.state.value == "running", info
    assert (info.cpu_count, info.memory_mb) == (2, 1024), info
    assert 119 <= (info.end_at - info.started_at).total_seconds() <= 121, info
    case("create and info")

    def names(**query):
        found, pages = [], Sandbox.list(query=SandboxQuery(**query) if query else None)
        while pages.has_next:
            found += [one.sandbox_id for one in pages.next_items()]
        return found

    assert names(metadata={"a b": "c&d/ü+%"}) == [sandbox.sandbox_id]
    assert names(metadata={"a b": "other"}) == []
    second = Sandbox.create(timeout=60)
    pages, found = Sandbox.list(limit=1), []
    while pages.has_next:
        page = pages.next_items()
        assert len(page) <= 1, page
        found += [one.sandbox_id for one in page]
    assert found == [second.sandbox_id, sandbox.sandbox_id], found
    case("lists")

    before = sandbox.get_info().end_at
    sandbox.set_timeout(600)
    assert sandbox.get_info().end_at > before
    again = Sandbox.connect(sandbox.sandbox_id, timeout=30)
    assert again.sandbox_id == sandbox.sandbox_id
    assert (again.get_info().end_at - before).total_seconds() > 400
    case("timeouts and connect")

    sandbox.update_network({"allow_out": ["192.0.2.1"], "deny_out": ["0.0.0.0/0"]})
    sandbox.update_network({})
    expect(e2b.SandboxException, lambda: sandbox.update_network({"deny_out": ["example.com"]}))
    case("network")

    begin = time.time()
    while not (metrics := sandbox.get_metrics()):
        assert time.time() - begin < 30, "no sample within 30 s"
        time.sleep(0.5)
    assert metrics[0].mem_total == 1024**3, metrics
    case("metrics")

    assert second.kill() is True
    assert second.kill() is False
    assert Sandbox.kill(second.sandbox_id) is False
    expect(e2b.SandboxNotFoundException, second.get_info)
    expect(e2b.SandboxNotFoundException, lambda: second.set_timeout(10))
    expect(e2b.SandboxNotFoundException, lambda: Sandbox.connect(second.sandbox_id))
    case("kill")

    expect(e2b.SandboxException, lambda: Sandbox.create("no-such-template"))
    raised = expect(e2b.SandboxException, lambda: Sandbox.create(timeout=10**6))
    assert "Timeout cannot be greater than 24 hours" in str(raised), raised
    wrong = "e2b_" + "0" * 40
    expect(e2b.AuthenticationException, lambda: Sandbox.create(api_key=wrong))
    expect(e2b.AuthenticationException, lambda: Sandbox.list(api_key=wrong).next_items())
    case("errors")

    sandbox.files.write("/home/user/state", "first")
    unnamed = sandbox.create_snapshot()
    assert unnamed.snapshot_id.endswith(":default") and unnamed.names == [], unnamed
    assert sandbox.is_running() is True
    sandbox.files.write("/home/user/state", "second")
    named = sandbox.create_snapshot(name="work")
    assert named.snapshot_id == "default/work:default" and named.names == ["default/work"], named

    def state(template):
        with Sandbox.create(template, timeout=60) as other:
            return other.files.read("/home/user/state")

    assert state(unnamed.snapshot_id) == "first"
    assert state(named.snapshot_id) == state("work") == "second"
    # The first of them again, as often as somebody wants it.
    assert state(unnamed.snapshot_id) == "first"

    def snapshots(pages):
        found = []
        while pages.has_next:
            found += [one.snapshot_id for one in pages.next_items()]
        return found

    both = [named.snapshot_id, unnamed.snapshot_id]
    assert snapshots(sandbox.list_snapshots()) == both
    assert snapshots(Sandbox.list_snapshots(limit=1)) == both
    assert snapshots(Sandbox.list_snapshots(name="work")) == [named.snapshot_id]
    assert snapshots(Sandbox.list_snapshots(name="nobody")) == []
    assert Sandbox.delete_snapshot(unnamed.snapshot_id) is True
    assert Sandbox.delete_snapshot(unnamed.snapshot_id) is False
    expect(e2b.SandboxException, lambda: Sandbox.create(unnamed.snapshot_id))
    assert Sandbox.delete_snapshot(named.snapshot_id) is True
    assert snapshots(Sandbox.list_snapshots()) == []
    case("snapshots")

    sleeper = sandbox.commands.run("sleep 1000", background=True)
    forks = sandbox.fork(count=2, timeout=60)
    assert len({one.sandbox_id for one in forks} | {sandbox.sandbox_id}) == 3, forks
    for number, fork in enumerate(forks):
        assert fork.files.read("/home/user/state") == "second"
        # With memory where the tier has it.
        runs = sleeper.pid in [one.pid for one in fork.commands.list()]
        assert runs is (os.environ["TIER"] == "gvisor"), runs
        fork.files.write("/home/user/state", str(number))
    assert [one.files.read("/home/user/state") for one in (*forks, sandbox)] == ["0", "1", "second"]
    assert forks[0].get_info().metadata == sandbox.get_info().metadata
    assert [one.kill() for one in forks] == [True, True]
    assert sandbox.commands.kill(sleeper.pid) is True
    case("forks")

    server = sandbox.commands.run("python3 -m http.server 8000", background=True)
    sandbox.commands.run("until curl -s -o /dev/null http://127.0.0.1:8000; do sleep 0.1; done")
    job = sandbox.commands.run("sleep 2; echo done > /tmp/job", background=True)
    boot = sandbox.files.read("/proc/sys/kernel/random/boot_id")
    sandbox.files.write("/tmp/kept", "kept")
    assert sandbox.pause() is True
    assert sandbox.is_running() is False
    assert sandbox.pause() is False
    assert sandbox.get_info().state.value == "paused"
    assert names(state=[SandboxState.PAUSED]) == [sandbox.sandbox_id]
    assert sandbox.sandbox_id not in names(state=[SandboxState.RUNNING])
    again = sandbox.connect(timeout=120)
    assert again.sandbox_id == sandbox.sandbox_id
    # Handles of before go on working: same name, same token.
    assert sandbox.is_running() is True
    assert sandbox.files.read("/tmp/kept") == "kept"
    assert sandbox.files.read("/proc/sys/kernel/random/boot_id") == boot
    served = sandbox.commands.run("python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000').status)\"")
    assert served.stdout == "200\n", served
    assert server.pid in [one.pid for one in sandbox.commands.list()]
    sandbox.commands.run("while [ ! -e /tmp/job ]; do sleep 0.1; done")
    assert job.pid not in [one.pid for one in sandbox.commands.list()]
    case("pause and resume")
    if os.environ["TIER"] == "container":
        assert sandbox.pause(mode="filesystem") is True
        assert sandbox.is_running() is False
        sandbox.connect(timeout=120)
        assert sandbox.files.read("/tmp/kept") == "kept"
        assert sandbox.files.read("/proc/sys/kernel/random/boot_id") != boot
        assert sandbox.commands.list() == []
    case("pause without memory")
    assert sandbox.pause() is True
    assert sandbox.kill() is True
    assert sandbox.kill() is False

    sleeper = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    begin = time.time()
    while sleeper.get_info().state.value != "paused":
        assert time.time() - begin < 30, "it is not paused at the end of its time"
        time.sleep(0.1)
    assert sleeper.commands.run("echo awake").stdout == "awake\n"
    assert sleeper.get_info().state.value == "running"
    sleeper.pause()
    assert sleeper.is_running() is True
    case("auto-pause and auto-resume")
    assert sleeper.kill() is True


async def asynchronous():
    made = await asyncio.gather(*(AsyncSandbox.create(timeout=60) for _ in range(4)))
    assert len({one.sandbox_id for one in made}) == 4
    assert await asyncio.gather(*(one.kill() for one in made)) == [True] * 4
    pages = AsyncSandbox.list()
    assert await pages.next_items() == []
    sandbox = await AsyncSandbox.create(timeout=60)
    assert await sandbox.pause() is True
    assert await sandbox.is_running() is False
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert await again.is_running() is True
    assert await again.kill() is True
    case("asynchronous")


synchronous()
asyncio.run(asynchronous())

# Without the interpreter's own end, at which the SDK's HTTP library sometimes aborts.
os._exit(0)
