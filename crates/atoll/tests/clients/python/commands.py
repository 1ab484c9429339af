"""Commands: how they start, what they say, how they end."""

import asyncio
import hashlib
import http.client
import select
import socket
import time
import urllib.parse

from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import CommandResult
from e2b.sandbox.commands.main import ProcessInfo

from suite import (
    ASYNC,
    HOME,
    ROUTE,
    SANDBOX_ID,
    SYNC,
    TEMPLATE_ID,
    TOKEN,
    URL,
    Stand,
    case,
    eventually,
    raised,
    same,
    settle,
)

# A pid that no process has: beyond the kernel's largest.
NO_PID = 4_194_999


def failure(stdout="", stderr="", exit_code=1, error="exit status 1"):
    return CommandExitException(
        stdout=stdout, stderr=stderr, exit_code=exit_code, error=error
    )


async def ends_with(expected, wait):
    error = await raised(CommandExitException, wait)
    same(vars(error), vars(expected))


@case
async def the_sandbox_is_running(stand):
    same(await settle(stand.sandbox.is_running()), True)


@case
async def both_outputs_of_a_command(stand):
    result = await stand.run("echo out; echo err >&2")
    same(result, CommandResult(stdout="out\n", stderr="err\n", exit_code=0, error=None))


@case
async def a_command_without_output(stand):
    result = await stand.run("true")
    same(result, CommandResult(stdout="", stderr="", exit_code=0, error=None))


@case
async def exit_statuses(stand):
    for status in [1, 7, 42, 127, 128, 255]:
        await ends_with(
            failure("out\n", "err\n", status, f"exit status {status}"),
            lambda: stand.run(f"echo out; echo err >&2; exit {status}"),
        )


@case
async def a_program_that_is_missing(stand):
    error = await raised(
        CommandExitException, lambda: stand.run("no-such-program-anywhere")
    )
    same((error.exit_code, error.error, error.stdout), (127, "exit status 127", ""))
    assert "no-such-program-anywhere: command not found" in error.stderr, error.stderr


@case
async def ends_by_signal(stand):
    for signal, text in [
        ("KILL", "signal: killed"),
        ("TERM", "signal: terminated"),
        ("SEGV", "signal: segmentation fault"),
    ]:
        await ends_with(
            failure("before\n", "", -1, text),
            lambda: stand.run(f"ulimit -c 0; echo before; kill -{signal} $$"),
        )


@case
async def characters_split_over_chunks(stand):
    result = await stand.run(
        r"printf '\xe2'; sleep 0.2; printf '\x82'; sleep 0.2; printf '\xac\xf0\x9f';"
        r" sleep 0.2; printf '\x98\x80\n'; printf '\xc3' >&2; sleep 0.2; printf '\xa9' >&2"
    )
    same((result.stdout, result.stderr), ("€😀\n", "é"))


@case
async def bytes_that_are_no_text(stand):
    result = await stand.run(r"printf 'a\xff\xfeb\xc3'")
    same(result.stdout, "a\ufffd\ufffdb\ufffd")


@case
async def five_megabytes_of_output(stand):
    output = await stand.output("seq 1 750000")
    expected = "".join(f"{number}\n" for number in range(1, 750001))
    assert len(expected) > 5_000_000
    assert output == expected, (len(output), output[:80], output[-80:])


@case
async def both_outputs_full_at_once(stand):
    result = await stand.run("(seq 1 200000 >&2) & seq 1 200000; wait")
    expected = "".join(f"{number}\n" for number in range(1, 200001))
    assert result.stdout == expected, len(result.stdout)
    assert result.stderr == expected, len(result.stderr)


@case
async def one_line_of_a_megabyte(stand):
    output = await stand.output("head -c 1048576 /dev/zero | tr '\\0' x")
    assert output == "x" * 1048576, len(output)


@case
async def variables_of_the_sandbox(stand):
    output = await stand.output(
        'echo "$E2B_SANDBOX,$E2B_SANDBOX_ID,$E2B_TEMPLATE_ID,$SUITE_VARIABLE"'
    )
    same(output, f"true,{SANDBOX_ID},{TEMPLATE_ID},from the suite\n")


@case
async def variables_of_the_user(stand):
    script = 'echo "$HOME,$USER,$LOGNAME,$(whoami),$(id -un):$(id -gn)"'
    same(await stand.output(script), f"{HOME},user,user,user,user:user\n")
    same(await stand.output(script, user="root"), "/root,root,root,root,root:root\n")


@case
async def programs_are_found_in_the_usual_places(stand):
    path = (await stand.output("echo $PATH")).strip().split(":")
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(path), path


@case
async def variables_of_a_command_win(stand):
    output = await stand.output(
        'echo "$SUITE_VARIABLE,$OWN,$EMPTY,$HOME"',
        envs={"SUITE_VARIABLE": "mine", "OWN": "a b=c 'd'", "EMPTY": ""},
    )
    same(output, f"mine,a b=c 'd',,{HOME}\n")
    same(await stand.output("echo $SUITE_VARIABLE$OWN"), "from the suite\n")


@case
async def the_sandbox_tells_programs_who_it_is(stand):
    output = await stand.output(
        "cd /run/e2b; cat .E2B_SANDBOX; echo; cat .E2B_SANDBOX_ID; echo; cat .E2B_TEMPLATE_ID"
    )
    same(output, f"true\n{SANDBOX_ID}\n{TEMPLATE_ID}")


@case
async def working_directories(stand):
    await settle(stand.files.make_dir(stand.directory))
    for cwd, expected in [
        (None, HOME),
        ("/", "/"),
        ("/usr/share", "/usr/share"),
        (stand.directory, stand.directory),
        ("working_directories", stand.directory),
        ("~", HOME),
        ("~/working_directories", stand.directory),
    ]:
        same(await stand.output("pwd", cwd=cwd), f"{expected}\n")
    same(await stand.output("pwd", cwd="~", user="root"), "/root\n")


@case
async def a_working_directory_that_is_missing(stand):
    error = await raised(
        InvalidArgumentException, lambda: stand.run("pwd", cwd="/no/such/directory")
    )
    same(str(error), "cwd '/no/such/directory' does not exist")


@case
async def users_and_their_groups(stand):
    same(await stand.output("id"), "uid=1000(user) gid=1000(user) groups=1000(user)\n")
    same(
        await stand.output("id", user="root"),
        "uid=0(root) gid=0(root) groups=0(root)\n",
    )
    same(await stand.output("sudo id -u"), "0\n")


@case
async def a_user_that_is_missing(stand):
    error = await raised(
        AuthenticationException, lambda: stand.run("id", user="nobody-here")
    )
    same(str(error), "invalid username: 'nobody-here'")


@case
async def a_token_that_is_wrong(stand):
    stranger = Stand(ASYNC if stand.is_async else SYNC, "stranger", token="not-the-token")
    for call in [
        lambda: stranger.run("id"),
        lambda: stranger.commands.list(),
        lambda: stranger.commands.kill(1),
        lambda: stranger.files.list("/"),
        lambda: stranger.files.make_dir("x"),
    ]:
        error = await raised(AuthenticationException, call)
        same(
            str(error),
            "unauthorized access, please provide a valid access token"
            " or method signing if supported",
        )
    for call in [
        lambda: stranger.files.read("/etc/hostname"),
        lambda: stranger.files.write("x", "y"),
        lambda: stranger.files.write("x", "y" * 100_000),
    ]:
        await raised(AuthenticationException, call)
    same(await settle(stranger.sandbox.is_running()), True)
    assert TOKEN != "not-the-token"


@case
async def a_refusal_before_the_body_keeps_or_announces_the_connection(stand):
    # Clients with a pool send the next request over the same connection; one
    # that is closed without a word is an error they cannot explain.
    address = urllib.parse.urlsplit(URL)
    route = "".join(f"{name}: {value}\r\n" for name, value in ROUTE.items()).encode()
    with socket.create_connection((address.hostname, address.port), 20) as stream:
        stream.sendall(
            b"POST /process.Process/Start HTTP/1.1\r\nhost: localhost\r\n"
            + route
            + b"x-access-token: not-the-token\r\nconnect-protocol-version: 1\r\n"
            b"content-type: application/connect+json\r\ncontent-length: 7\r\n\r\n"
        )
        # Long enough for a guest that answers before the body comes.
        select.select([stream], [], [], 0.5)
        stream.sendall(b"\0\0\0\0\2{}")
        refusal = http.client.HTTPResponse(stream)
        refusal.begin()
        same(refusal.status, 401)
        refusal.read()
        if refusal.getheader("connection") == "close":
            return
        stream.sendall(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + route + b"\r\n"
        )
        answer = http.client.HTTPResponse(stream)
        answer.begin()
        same(answer.status, 204)


@case
async def a_command_in_the_background(stand):
    handle = await stand.start("echo started; read line; echo got $line", stdin=True)
    # Its pid is the one that programs in the sandbox know.
    same(await stand.output(f"kill -0 {handle.pid} && echo alive"), "alive\n")
    await settle(stand.commands.send_stdin(handle.pid, "go\n"))
    result = await settle(handle.wait())
    same(
        result,
        CommandResult(stdout="started\ngot go\n", stderr="", exit_code=0, error=None),
    )


@case
async def the_pid_is_that_of_the_command(stand):
    handle = await stand.start("echo $$")
    result = await settle(handle.wait())
    same(result.stdout, f"{handle.pid}\n")


@case
async def a_killed_command(stand):
    handle = await stand.start("exec sleep 301")
    same(await settle(handle.kill()), True)
    await ends_with(failure("", "", -1, "signal: killed"), handle.wait)
    same(await settle(handle.kill()), False)
    same(await settle(stand.commands.kill(handle.pid)), False)
    same(await stand.runs("sleep 301"), False)


@case
async def killing_what_is_not_there(stand):
    same(await settle(stand.commands.kill(NO_PID)), False)


@case
async def only_commands_can_be_killed(stand):
    # The guest itself is a process, but none of a client.
    same(await settle(stand.commands.kill(1)), False)
    same(await settle(stand.sandbox.is_running()), True)


@case
async def a_command_beyond_its_time(stand):
    start = time.monotonic()
    error = await raised(
        TimeoutException,
        lambda: stand.run("sleep 302 & setsid sleep 302 & sleep 302", timeout=1),
    )
    took = time.monotonic() - start
    assert 0.9 < took < 15, took
    assert "'timeout'" in str(error), error
    await eventually("the end of the tree", lambda: absent(stand, "sleep 302"))


async def absent(stand, pattern):
    return not await stand.runs(pattern)


@case
async def no_limit_of_time(stand):
    result = await stand.run("sleep 1.5; echo done", timeout=0)
    same(result.stdout, "done\n")


@case
async def a_command_reads_what_is_sent(stand):
    handle = await stand.start("cat; echo end >&2", stdin=True)
    await settle(handle.send_stdin("text, "))
    await settle(handle.send_stdin(b"bytes \xe2\x82\xac, "))
    await settle(stand.commands.send_stdin(handle.pid, "and more"))
    await settle(handle.close_stdin())
    result = await settle(handle.wait())
    same((result.stdout, result.stderr), ("text, bytes €, and more", "end\n"))


@case
async def a_megabyte_is_sent(stand):
    handle = await stand.start("sha256sum", stdin=True)
    chunk = "0123456789abcdef" * 8192
    for _ in range(8):
        await settle(handle.send_stdin(chunk))
    await settle(stand.commands.close_stdin(handle.pid))
    result = await settle(handle.wait())
    same(result.stdout, f"{hashlib.sha256((chunk * 8).encode()).hexdigest()}  -\n")


@case
async def input_is_empty_unless_asked_for(stand):
    result = await stand.run("cat; readlink /proc/self/fd/0")
    same(result.stdout, "/dev/null\n")


@case
async def sending_to_a_command_without_input(stand):
    handle = await stand.start("exec sleep 303")
    await raised(
        SandboxException, lambda: stand.commands.send_stdin(handle.pid, "text")
    )
    same(await settle(handle.kill()), True)


@case
async def sending_to_what_is_not_there(stand):
    await raised(NotFoundException, lambda: stand.commands.send_stdin(NO_PID, "x"))
    await raised(NotFoundException, lambda: stand.commands.close_stdin(NO_PID))


@case(only=SYNC)
async def input_as_one_stream(stand):
    handle = await stand.start("cat", stdin=True)

    def pieces():
        for number in range(100):
            yield f"{number}\n" if number % 2 else f"{number}\n".encode()

    stand.commands.stream_input(handle.pid, pieces())
    # The end of the stream is not the end of the input.
    stand.commands.send_stdin(handle.pid, "last\n")
    handle.close_stdin()
    expected = "".join(f"{number}\n" for number in range(100)) + "last\n"
    same(handle.wait().stdout, expected)


@case(only=SYNC)
async def a_stream_to_what_is_not_there(stand):
    await raised(NotFoundException, lambda: stand.commands.stream_input(NO_PID, ["x"]))


@case(only=ASYNC)
async def input_as_one_open_stream(stand):
    received = asyncio.Queue()
    handle = await stand.start(
        "while read line; do echo got $line; done",
        stdin=True,
        on_stdout=received.put_nowait,
    )
    async with stand.commands.stream_input(handle.pid) as stream:
        for number in range(3):
            await stream.send(f"{number}\n")
            # Each piece arrives while the stream is still open.
            same(await asyncio.wait_for(received.get(), 20), f"got {number}\n")
    await handle.close_stdin()
    same((await handle.wait()).stdout, "got 0\ngot 1\ngot 2\n")


@case(only=ASYNC)
async def an_open_stream_to_what_is_not_there(stand):
    stream = stand.commands.stream_input(NO_PID)
    await raised(NotFoundException, stream.close)


@case
async def running_commands_are_listed(stand):
    handle = await stand.start("exec sleep 304", envs={"A": "1"}, cwd="/usr")
    plain = await stand.start("exec sleep 305")
    listed = {info.pid: info for info in await settle(stand.commands.list())}
    same(
        listed[handle.pid],
        ProcessInfo(
            pid=handle.pid,
            tag=None,
            cmd="/bin/bash",
            args=["-l", "-c", "exec sleep 304"],
            envs={"A": "1"},
            cwd="/usr",
        ),
    )
    same(
        listed[plain.pid],
        ProcessInfo(
            pid=plain.pid,
            tag=None,
            cmd="/bin/bash",
            args=["-l", "-c", "exec sleep 305"],
            envs={},
            cwd=None,
        ),
    )
    for started in [handle, plain]:
        same(await settle(started.kill()), True)
        await raised(CommandExitException, started.wait)
    listed = {info.pid for info in await settle(stand.commands.list())}
    assert not listed & {handle.pid, plain.pid}, listed


@case(only=SYNC)
async def a_second_handle_sees_what_comes_after_it(stand):
    first = await stand.start("echo before; read line; echo $line", stdin=True)
    for stdout, _, _ in first:
        same(stdout, "before\n")
        break
    second = stand.commands.connect(first.pid)
    same(second.pid, first.pid)
    second.send_stdin("after\n")
    same(second.wait().stdout, "after\n")
    same(first.wait().stdout, "before\nafter\n")


@case(only=ASYNC)
async def a_second_handle_hears_what_comes_after_it(stand):
    said = asyncio.Event()
    first = await stand.start(
        "echo before; read line; echo $line",
        stdin=True,
        on_stdout=lambda _: said.set(),
    )
    await asyncio.wait_for(said.wait(), 20)
    heard = []
    second = await stand.commands.connect(first.pid, on_stdout=heard.append)
    same(second.pid, first.pid)
    await second.send_stdin("after\n")
    same((await second.wait()).stdout, "after\n")
    same(heard, ["after\n"])
    same((await first.wait()).stdout, "before\nafter\n")


@case
async def connecting_to_what_has_just_ended(stand):
    handle = await stand.start("echo out; exit 3")
    await ends_with(failure("out\n", "", 3, "exit status 3"), handle.wait)
    again = await settle(stand.commands.connect(handle.pid))
    same(again.pid, handle.pid)
    await ends_with(failure("", "", 3, "exit status 3"), again.wait)


@case
async def connecting_to_what_is_not_there(stand):
    await raised(NotFoundException, lambda: stand.commands.connect(NO_PID))


@case
async def a_client_that_leaves_does_not_end_its_command(stand):
    handle = await stand.start("exec sleep 306")
    await settle(handle.disconnect())
    listed = [info.pid for info in await settle(stand.commands.list())]
    assert handle.pid in listed, listed
    again = await settle(stand.commands.connect(handle.pid))
    same(await settle(again.kill()), True)
    await ends_with(failure("", "", -1, "signal: killed"), again.wait)


@case
async def a_connection_has_a_time_of_its_own(stand):
    handle = await stand.start("exec sleep 307", timeout=0)
    again = await settle(stand.commands.connect(handle.pid, timeout=1))
    await raised(TimeoutException, again.wait)
    # Only the connection ended.
    same(await stand.output(f"kill -0 {handle.pid} && echo alive"), "alive\n")
    same(await settle(handle.kill()), True)


@case
async def output_arrives_in_order_and_at_once(stand):
    heard = []
    started = time.monotonic()
    await stand.run(
        "for i in 1 2 3; do echo out$i; sleep 0.2; echo err$i >&2; sleep 0.2; done; sleep 1",
        on_stdout=lambda text: heard.append((text, time.monotonic() - started)),
        on_stderr=lambda text: heard.append((text, time.monotonic() - started)),
    )
    took = time.monotonic() - started
    same(
        [text for text, _ in heard],
        ["out1\n", "err1\n", "out2\n", "err2\n", "out3\n", "err3\n"],
    )
    assert heard[0][1] < took - 1.5, (heard, took)


@case
async def output_that_nobody_keeps(stand):
    heard = []
    result = await stand.run("echo out", retain_output=False, on_stdout=heard.append)
    same((result.stdout, result.stderr, heard), (None, None, ["out\n"]))


@case
async def a_script_of_many_lines(stand):
    result = await stand.run("cat <<'END'\n$HOME \"quoted\" \\ `x`\n\ttab €\nEND\n")
    same(result.stdout, '$HOME "quoted" \\ `x`\n\ttab €\n')


@case(only=ASYNC)
async def forty_commands_at_once(stand):
    results = await asyncio.gather(
        *(stand.run(f"sleep 0.2; echo {number}") for number in range(40))
    )
    same([result.stdout for result in results], [f"{number}\n" for number in range(40)])


@case
async def git_through_the_sdk(stand):
    git = stand.sandbox.git
    await settle(git.init(stand.directory, initial_branch="main"))
    await settle(stand.files.write(f"{stand.directory}/a.txt", "a"))
    await settle(git.configure_user("Suite", "suite@example.org"))
    await settle(git.add(stand.directory))
    await settle(git.commit(stand.directory, "first"))
    status = await settle(git.status(stand.directory))
    same((status.current_branch, status.file_status), ("main", []))
