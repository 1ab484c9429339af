// Terminals: `sandbox.pty`.

import assert from 'node:assert/strict'

import {
  CommandExitError,
  InvalidArgumentError,
  NotFoundError,
  SandboxError,
  TimeoutError,
} from 'e2b'

import { eventually, HOME, NO_PID, raised, same } from '../suite.mjs'

/** An open terminal, and what it showed so far. */
class Terminal {
  shown = Buffer.alloc(0)

  static async open({ pty }, options) {
    const self = new Terminal()
    self.pty = pty
    self.handle = await pty.create({ rows: 24, cols: 80, onData: self.show, ...options })
    return self
  }

  static async connect({ pty }, pid) {
    const self = new Terminal()
    self.pty = pty
    self.handle = await pty.connect(pid, { onData: self.show })
    return self
  }

  show = (data) => {
    assert(data instanceof Uint8Array)
    this.shown = Buffer.concat([this.shown, data])
  }

  get pid() {
    return this.handle.pid
  }

  type(text) {
    return this.pty.sendInput(this.pid, new TextEncoder().encode(text))
  }

  /** Waits until the terminal shows `text`, and forgets everything up to it. */
  async until(text) {
    try {
      await eventually(text, () => this.shown.includes(text))
    } catch {
      assert.fail(`never showed ${JSON.stringify(text)}: ${JSON.stringify(String(this.shown))}`)
    }
    const at = this.shown.indexOf(text)
    const before = this.shown.subarray(0, at).toString()
    this.shown = this.shown.subarray(at + Buffer.byteLength(text))
    return before
  }

  async endsWith(exitCode, text) {
    const error = await raised(CommandExitError, () => this.handle.wait())
    same([error.exitCode, error.error], [exitCode, text])
  }

  async kill() {
    same(await this.pty.kill(this.pid), true)
    await this.endsWith(-1, 'signal: killed')
  }
}

export const terminals = {
  async a_terminal_runs_a_shell(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.type('echo $((6 * 7))-$USER\n')
    await terminal.until('42-user\r\n')
    await terminal.type('exit\n')
    same((await terminal.handle.wait()).exitCode, 0)
  },

  async the_size_of_a_terminal(stand) {
    const terminal = await Terminal.open(stand, { rows: 31, cols: 117 })
    await terminal.type('stty size\n')
    await terminal.until('31 117\r\n')
    await stand.pty.resize(terminal.pid, { rows: 50, cols: 200 })
    await terminal.type('stty size\n')
    await terminal.until('50 200\r\n')
    await terminal.kill()
  },

  async the_status_of_a_shell(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.type('exit 5\n')
    await terminal.endsWith(5, 'exit status 5')
  },

  async control_c_ends_what_runs_and_not_the_shell(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.type('sleep 331\n')
    await eventually('the program', () => stand.runs('sleep 331'))
    await terminal.type('\x03')
    await terminal.type('echo status-$?\n')
    await terminal.until('status-130\r\n')
    same(await stand.runs('sleep 331'), false)
    await terminal.kill()
  },

  async control_z_and_jobs(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.type('sleep 332\n')
    await eventually('the program', () => stand.runs('sleep 332'))
    await terminal.type('\x1a')
    await terminal.until('Stopped')
    await terminal.type('kill -9 %1; wait; echo gone-$((2))\n')
    await terminal.until('gone-2\r\n')
    await terminal.kill()
  },

  async control_d_ends_the_shell(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.type('echo begin-$((1))\n')
    await terminal.until('begin-1\r\n')
    await terminal.type('\x04')
    same((await terminal.handle.wait()).exitCode, 0)
  },

  async a_killed_terminal(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.kill()
    same(await stand.pty.kill(terminal.pid), false)
  },

  async variables_of_a_terminal(stand) {
    const terminal = await Terminal.open(stand, { envs: { OWN: 'mine' }, cwd: '/usr' })
    await terminal.type('echo "<$TERM|$LANG|$LC_ALL|$OWN|$SUITE_VARIABLE|$HOME|$PWD>"\n')
    await terminal.until(
      `<xterm-256color|C.UTF-8|C.UTF-8|mine|from the suite|${HOME}|/usr>\r\n`,
    )
    await terminal.kill()
  },

  async a_terminal_of_another_user(stand) {
    const terminal = await Terminal.open(stand, { user: 'root' })
    await terminal.type('echo "<$(id -un)|$PWD>"\n')
    await terminal.until('<root|/root>\r\n')
    await terminal.kill()
  },

  async a_terminal_in_a_directory_that_is_missing(stand) {
    const error = await raised(InvalidArgumentError, () =>
      Terminal.open(stand, { cwd: '/no/such/place' }),
    )
    same(error.message, "[invalid_argument] cwd '/no/such/place' does not exist")
  },

  async much_output_of_a_terminal(stand) {
    const terminal = await Terminal.open(stand)
    await terminal.type('stty -echo; seq 1 100000; echo done-$((3))\n')
    const shown = await terminal.until('done-3\r\n')
    const expected = Array.from({ length: 100_000 }, (_, n) => `${n + 1}\r\n`).join('')
    assert(shown.includes(expected), `${shown.length}`)
    await terminal.kill()
  },

  async a_second_view_of_a_terminal(stand) {
    const first = await Terminal.open(stand)
    await first.type('echo begin-$((1))\n')
    await first.until('begin-1\r\n')
    const second = await Terminal.connect(stand, first.pid)
    same(second.pid, first.pid)
    await second.type('echo both-$((2))\n')
    await first.until('both-2\r\n')
    await second.until('both-2\r\n')
    await first.type('exit 4\n')
    await first.endsWith(4, 'exit status 4')
    await second.endsWith(4, 'exit status 4')
  },

  async a_terminal_beyond_its_time(stand) {
    const terminal = await Terminal.open(stand, { timeoutMs: 1000 })
    await raised(TimeoutError, () => terminal.handle.wait())
    await eventually('the end of the terminal', async () => {
      const listed = (await stand.commands.list()).map(({ pid }) => pid)
      const alive = await stand.output(`kill -0 ${terminal.pid} 2>&1 && echo alive || true`)
      return !listed.includes(terminal.pid) && !alive.includes('alive')
    })
  },

  async terminals_that_are_not_there({ pty }) {
    await raised(NotFoundError, () => pty.resize(NO_PID, { rows: 1, cols: 1 }))
    await raised(NotFoundError, () => pty.sendInput(NO_PID, new Uint8Array([1])))
    await raised(NotFoundError, () => pty.connect(NO_PID))
    same(await pty.kill(NO_PID), false)
  },

  async commands_are_no_terminals({ start, pty, commands }) {
    const handle = await start('exec cat', { stdin: true })
    await raised(SandboxError, () => pty.resize(handle.pid, { rows: 1, cols: 1 }))
    await raised(SandboxError, () => pty.sendInput(handle.pid, new Uint8Array([1])))
    await commands.closeStdin(handle.pid)
    same((await handle.wait()).exitCode, 0)
    const terminal = await Terminal.open({ pty })
    await raised(SandboxError, () => commands.closeStdin(terminal.pid))
    await terminal.kill()
  },
}
