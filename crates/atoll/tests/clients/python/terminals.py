"""Terminals: `sandbox.pty`."""

import asyncio
import threading

from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxException,
    TimeoutException,
)

from suite import BOUND_SECONDS, HOME, case, eventually, raised, same, settle

NO_PID = 4_194_999


class Terminal:
    """An open terminal, and what it showed so far.

    The two flavours hand over output differently: one calls back, the other
    is iterated over, which takes a thread here.
    """

    def __init__(self):
        self.shown = b""
        self.handle = None
        self.changed = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.ended = None

    @classmethod
    async def open(cls, stand, rows=24, cols=80, **options):
        self = cls()
        self.pty = stand.pty
        size = PtySize(rows=rows, cols=cols)
        if stand.is_async:
            self.handle = await stand.pty.create(size, on_data=self.show, **options)
            self.ended = asyncio.ensure_future(self.handle.wait())
        else:
            self.follow(stand.pty.create(size, **options))
        return self

    @classmethod
    async def connect(cls, stand, pid):
        self = cls()
        self.pty = stand.pty
        if stand.is_async:
            self.handle = await stand.pty.connect(pid, on_data=self.show)
            self.ended = asyncio.ensure_future(self.handle.wait())
        else:
            self.follow(stand.pty.connect(pid))
        return self

    def follow(self, handle):
        self.handle, self.ended = handle, self.loop.create_future()

        def settled(set_outcome, outcome):
            if not self.ended.done():
                set_outcome(outcome)

        def run():
            try:
                result = handle.wait(
                    on_pty=lambda data: self.loop.call_soon_threadsafe(self.show, data)
                )
                self.loop.call_soon_threadsafe(settled, self.ended.set_result, result)
            except Exception as error:
                self.loop.call_soon_threadsafe(settled, self.ended.set_exception, error)

        threading.Thread(target=run, daemon=True).start()

    @property
    def pid(self):
        return self.handle.pid

    def show(self, data):
        assert isinstance(data, bytes), data
        self.shown += data
        self.changed.set()

    async def type(self, text):
        await settle(self.pty.send_stdin(self.pid, text.encode()))

    async def until(self, text):
        """Waits until the terminal shows `text`, and forgets everything up to it."""
        wanted = text.encode()

        async def shown():
            while wanted not in self.shown:
                self.changed.clear()
                await self.changed.wait()

        try:
            await asyncio.wait_for(shown(), BOUND_SECONDS)
        except TimeoutError:
            raise AssertionError(f"never showed {text!r}: {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(wanted)
        return before.decode(errors="replace")

    async def end(self):
        return await asyncio.wait_for(self.ended, BOUND_SECONDS)

    async def ends_with(self, exit_code, error):
        ended = await raised(CommandExitException, self.end)
        same((ended.exit_code, ended.error), (exit_code, error))


@case
async def a_terminal_runs_a_shell(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("echo $((6 * 7))-$0-$USER\n")
    await terminal.until("42-")
    shell = await terminal.until("-user\r\n")
    assert shell.endswith("bash"), shell
    await terminal.type("exit\n")
    result = await terminal.end()
    same((result.exit_code, result.error, result.stdout), (0, None, ""))


@case
async def the_size_of_a_terminal(stand):
    terminal = await Terminal.open(stand, rows=31, cols=117)
    await terminal.type("stty size\n")
    await terminal.until("31 117\r\n")
    await terminal.type("echo $LINES+$COLUMNS=\n")
    await terminal.until("31+117=\r\n")
    await settle(stand.pty.kill(terminal.pid))


@case
async def a_terminal_gets_another_size(stand):
    terminal = await Terminal.open(stand)
    # A program in the foreground is told, and sees the new size.
    program = (
        "from os import get_terminal_size as size; from signal import *;"
        " pthread_sigmask(SIG_BLOCK, [SIGWINCH]); print(*size(), flush=True);"
        " sigwait([SIGWINCH]); print(*size())"
    )
    await terminal.type(f"stty -echo; clear; python3 -c '{program}'\n")
    await terminal.until("80 24\r\n")
    await settle(stand.pty.resize(terminal.pid, PtySize(rows=50, cols=200)))
    await terminal.until("200 50\r\n")
    await terminal.type("stty size\n")
    await terminal.until("50 200\r\n")
    await settle(stand.pty.kill(terminal.pid))


@case
async def the_status_of_a_shell(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("exit 5\n")
    await terminal.ends_with(5, "exit status 5")


@case
async def control_c_ends_what_runs_and_not_the_shell(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("sleep 311\n")
    await eventually("the program", lambda: stand.runs("sleep 311"))
    await terminal.type("\x03")
    await terminal.type("echo status-$?\n")
    await terminal.until("status-130\r\n")
    same(await stand.runs("sleep 311"), False)
    await terminal.type("exit 6\n")
    await terminal.ends_with(6, "exit status 6")


@case
async def control_z_and_jobs(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("sleep 312\n")
    await eventually("the program", lambda: stand.runs("sleep 312"))
    await terminal.type("\x1a")
    await terminal.until("Stopped")
    await terminal.type("jobs\n")
    await terminal.until("Stopped")
    await terminal.type("kill -9 %1; wait; echo gone-$((2))\n")
    await terminal.until("gone-2\r\n")
    await settle(stand.pty.kill(terminal.pid))


@case
async def control_d_ends_the_shell(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("echo begin-$((1))\n")
    await terminal.until("begin-1\r\n")
    # Until it reads again, the terminal would end a line with it.
    await terminal.until("$ ")
    await terminal.type("\x04")
    same((await terminal.end()).exit_code, 0)


@case
async def a_killed_terminal(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("echo begin-$((1))\n")
    await terminal.until("begin-1\r\n")
    same(await settle(stand.pty.kill(terminal.pid)), True)
    await terminal.ends_with(-1, "signal: killed")
    same(await settle(stand.pty.kill(terminal.pid)), False)


@case
async def variables_of_a_terminal(stand):
    terminal = await Terminal.open(stand, envs={"OWN": "mine", "TERM": "vt100"})
    await terminal.type('echo "<$TERM|$LANG|$LC_ALL|$OWN|$SUITE_VARIABLE|$HOME>"\n')
    await terminal.until(f"<vt100|C.UTF-8|C.UTF-8|mine|from the suite|{HOME}>\r\n")
    await settle(stand.pty.kill(terminal.pid))
    plain = await Terminal.open(stand)
    await plain.type('echo "<$TERM|$LANG|$LC_ALL>"\n')
    await plain.until("<xterm-256color|C.UTF-8|C.UTF-8>\r\n")
    await settle(stand.pty.kill(plain.pid))


@case
async def user_and_directory_of_a_terminal(stand):
    terminal = await Terminal.open(stand, user="root", cwd="/usr/share")
    await terminal.type('echo "<$(id -un)|$PWD>"\n')
    await terminal.until("<root|/usr/share>\r\n")
    await settle(stand.pty.kill(terminal.pid))


@case
async def a_terminal_in_a_directory_that_is_missing(stand):
    error = await raised(
        InvalidArgumentException, lambda: Terminal.open(stand, cwd="/no/such/place")
    )
    same(str(error), "cwd '/no/such/place' does not exist")


@case
async def text_of_all_kinds_in_a_terminal(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("printf '%s|' 'é€😀'; tty\n")
    await terminal.until("é€😀|/dev/pts/")
    await settle(stand.pty.kill(terminal.pid))


@case
async def much_output_of_a_terminal(stand):
    terminal = await Terminal.open(stand)
    await terminal.type("stty -echo; seq 1 100000; echo done-$((3))\n")
    shown = await terminal.until("done-3\r\n")
    expected = "".join(f"{number}\r\n" for number in range(1, 100001))
    assert expected in shown, (len(shown), shown[-200:])
    await settle(stand.pty.kill(terminal.pid))


@case
async def a_terminal_is_listed(stand):
    terminal = await Terminal.open(stand)
    listed = {info.pid: info for info in await settle(stand.commands.list())}
    same(listed[terminal.pid].args, ["-i", "-l"])
    same(await settle(stand.pty.kill(terminal.pid)), True)


@case
async def a_second_view_of_a_terminal(stand):
    first = await Terminal.open(stand)
    await first.type("echo begin-$((1))\n")
    await first.until("begin-1\r\n")
    second = await Terminal.connect(stand, first.pid)
    same(second.pid, first.pid)
    await second.type("echo both-$((2))\n")
    await first.until("both-2\r\n")
    await second.until("both-2\r\n")
    assert b"begin-1" not in second.shown
    await first.type("exit 4\n")
    await first.ends_with(4, "exit status 4")
    await second.ends_with(4, "exit status 4")


@case
async def typing_as_one_stream(stand):
    terminal = await Terminal.open(stand)
    if stand.is_async:
        async with stand.pty.stream_input(terminal.pid) as stream:
            for piece in ["echo str", b"eamed-", "$((9))\n"]:
                await stream.send(piece)
    else:
        stand.pty.stream_input(terminal.pid, ["echo str", b"eamed-", "$((9))\n"])
    await terminal.until("streamed-9\r\n")
    await settle(stand.pty.kill(terminal.pid))


@case
async def a_terminal_beyond_its_time(stand):
    terminal = await Terminal.open(stand, timeout=1)
    await raised(TimeoutException, terminal.end)

    # The client keeps time as well and may be the first.
    async def gone():
        listed = [info.pid for info in await settle(stand.commands.list())]
        alive = await stand.output(f"kill -0 {terminal.pid} 2>&1 && echo alive || true")
        return terminal.pid not in listed and "alive" not in alive

    await eventually("the end of the terminal", gone)


@case
async def terminals_that_are_not_there(stand):
    size = PtySize(rows=1, cols=1)
    await raised(NotFoundException, lambda: stand.pty.resize(NO_PID, size))
    await raised(NotFoundException, lambda: stand.pty.send_stdin(NO_PID, b"x"))
    await raised(NotFoundException, lambda: stand.pty.connect(NO_PID, *[None] * stand.is_async))
    same(await settle(stand.pty.kill(NO_PID)), False)


@case
async def commands_are_no_terminals(stand):
    handle = await stand.start("exec cat", stdin=True)
    size = PtySize(rows=1, cols=1)
    await raised(SandboxException, lambda: stand.pty.resize(handle.pid, size))
    await raised(SandboxException, lambda: stand.pty.send_stdin(handle.pid, b"x"))
    same(await settle(handle.kill()), True)
    terminal = await Terminal.open(stand)
    await raised(SandboxException, lambda: stand.commands.close_stdin(terminal.pid))
    same(await settle(stand.pty.kill(terminal.pid)), True)
