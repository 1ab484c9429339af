// `process.Process`.

import assert from 'node:assert/strict'

import { Code } from '@connectrpc/connect'

import { eventually, guest, HOME, NO_PID, same, within } from '../suite.mjs'
import {
  as,
  bash,
  byPid,
  byTag,
  bytes,
  EXITED,
  Followed,
  gone,
  kill,
  KILLED,
  output,
  refused,
  run,
  start,
} from './calls.mjs'

const listed = async ({ process }, wanted) =>
  (await process.list({})).processes.find(({ pid }) => pid === wanted)

const data = (kind, value) => ({
  event: { case: 'data', value: { input: { input: { case: kind, value: bytes(value) } } } },
})
const first = (process) => ({ event: { case: 'start', value: { process } } })
const KEEPALIVE = { event: { case: 'keepalive', value: {} } }

export const process = {
  async start_tells_of_a_whole_command(stand) {
    same(await run(stand, 'echo out; echo err >&2'), {
      stdout: 'out\n',
      stderr: 'err\n',
      pty: '',
      end: EXITED,
    })
  },

  async start_tells_of_every_status(stand) {
    for (const exitCode of [1, 42, 255]) {
      const status = `exit status ${exitCode}`
      same((await run(stand, `exit ${exitCode}`)).end, {
        exitCode,
        exited: true,
        status,
        error: status,
      })
    }
    same((await run(stand, 'kill -9 $$')).end, KILLED)
    same((await run(stand, 'kill -15 $$')).end, {
      exitCode: -1,
      exited: false,
      status: 'signal: terminated',
      error: 'signal: terminated',
    })
  },

  async start_runs_any_program(stand) {
    const followed = await start(stand, {
      process: { cmd: 'printf', args: ['%s|', 'a b', '$HOME', ''] },
      stdin: false,
    })
    same((await followed.rest()).stdout, 'a b|$HOME||')
  },

  async start_gives_variables_directory_and_user(stand) {
    const script = 'echo "$HOME,$USER,$LOGNAME,$PWD,$A,$SUITE_VARIABLE,$E2B_SANDBOX_ID"'
    const followed = await start(
      stand,
      { process: bash(script, { envs: { A: '€', SUITE_VARIABLE: 'mine' }, cwd: '/usr' }) },
      as('root'),
    )
    same((await followed.rest()).stdout, `/root,root,root,/usr,€,mine,${guest.sandboxId}\n`)
    same(await output(stand, script), `${HOME},user,user,${HOME},,from the suite,${guest.sandboxId}\n`)
  },

  async start_refuses_what_it_cannot_start(stand) {
    const call = (request, options) => () => start(stand, request, options)
    await refused(
      Code.InvalidArgument,
      "cwd '/no/such/place' does not exist",
      call({ process: bash('true', { cwd: '/no/such/place' }) }),
    )
    await refused(
      Code.InvalidArgument,
      /no-such-program/,
      call({ process: { cmd: '/no-such-program' } }),
    )
    await refused(Code.InvalidArgument, /./, call({ process: { cmd: '' } }))
    await refused(Code.InvalidArgument, /./, call({}))
    await refused(
      Code.Unauthenticated,
      "invalid username: 'nobody-here'",
      call({ process: bash('true') }, as('nobody-here')),
    )
  },

  async start_gives_input_unless_told_otherwise(stand) {
    const script = 'stat -L -c %F /proc/self/fd/0'
    for (const [stdin, expected] of [
      [undefined, 'fifo'],
      [true, 'fifo'],
      [false, 'character special file'],
    ]) {
      const followed = await start(stand, { process: bash(script), stdin })
      same([stdin, (await followed.rest()).stdout], [stdin, `${expected}\n`])
    }
  },

  async start_opens_a_terminal(stand) {
    const followed = await start(stand, {
      process: bash('tty >/dev/null && stty size && exit 3'),
      pty: { size: { rows: 33, cols: 111 } },
    })
    const { stdout, stderr, pty, end } = await followed.rest()
    same([stdout, stderr, pty, end.exitCode], ['', '', '33 111\r\n', 3])
  },

  async connect_follows_from_now_on(stand) {
    const followed = await start(stand, {
      process: bash('echo before; read line; echo $line'),
      stdin: true,
    })
    await followed.until('before\n')
    const second = await new Followed(
      stand.process.connect({ process: byPid(followed.pid) }),
    ).started()
    same(second.pid, followed.pid)
    await stand.process.sendInput({
      process: byPid(followed.pid),
      input: { input: { case: 'stdin', value: bytes('after\n') } },
    })
    for (const each of [followed, second]) {
      same(await each.rest(), { stdout: 'after\n', stderr: '', pty: '', end: EXITED })
    }
  },

  async connect_tells_how_a_command_ended(stand) {
    const followed = await start(stand, { process: bash('exit 9'), tag: 'ended' })
    const { end } = await followed.rest()
    for (const process of [byPid(followed.pid), byTag('ended')]) {
      const again = await new Followed(stand.process.connect({ process })).started()
      same(again.pid, followed.pid)
      same((await again.rest()).end, end)
    }
  },

  async connect_knows_running_commands_only(stand) {
    const call = (process) => () => new Followed(stand.process.connect({ process })).started()
    await refused(Code.NotFound, /4194999/, call(byPid(NO_PID)))
    await refused(Code.NotFound, /no-such-tag/, call(byTag('no-such-tag')))
    await refused(Code.InvalidArgument, /./, call(undefined))
  },

  async a_late_connection_ends_alone(stand) {
    const followed = await start(stand, { process: bash('exec sleep 341') })
    await refused(Code.DeadlineExceeded, undefined, async () => {
      const second = new Followed(
        stand.process.connect({ process: byPid(followed.pid) }, { timeoutMs: 700 }),
      )
      await (await second.started()).rest()
    })
    assert(await listed(stand, followed.pid))
    await kill(stand, followed)
  },

  async list_names_every_running_command(stand) {
    const config = { cmd: 'sleep', args: ['342'], envs: { A: 'b' }, cwd: '/usr' }
    const followed = await start(stand, { process: config, tag: 'mine' })
    const info = await listed(stand, followed.pid)
    same(
      [info.pid, info.tag, info.config.cmd, info.config.args, { ...info.config.envs }, info.config.cwd],
      [followed.pid, 'mine', 'sleep', ['342'], { A: 'b' }, '/usr'],
    )
    await kill(stand, followed)
    same(await listed(stand, followed.pid), undefined)
  },

  async send_input_reaches_the_command(stand) {
    const followed = await start(stand, { process: bash('cat'), stdin: true, tag: 'cat' })
    for (const process of [byPid(followed.pid), byTag('cat')]) {
      await stand.process.sendInput({
        process,
        input: { input: { case: 'stdin', value: bytes('€\n') } },
      })
    }
    await stand.process.closeStdin({ process: byTag('cat') })
    same(await followed.rest(), { stdout: '€\n€\n', stderr: '', pty: '', end: EXITED })
  },

  async send_input_is_refused_where_there_is_none(stand) {
    const input = (kind) => ({ input: { case: kind, value: bytes('x') } })
    const send = (process, input) => () => stand.process.sendInput({ process, input })
    const plain = await start(stand, { process: bash('exec sleep 343'), stdin: false })
    await refused(Code.Internal, /stdin/, send(byPid(plain.pid), input('stdin')))
    await refused(Code.FailedPrecondition, /terminal/, send(byPid(plain.pid), input('pty')))
    await refused(Code.InvalidArgument, /./, send(byPid(plain.pid), undefined))
    await refused(Code.NotFound, /4194999/, send(byPid(NO_PID), input('stdin')))
    await refused(Code.NotFound, /no-such-tag/, send(byTag('no-such-tag'), input('stdin')))
    await kill(stand, plain)
    await refused(Code.NotFound, /./, send(byPid(plain.pid), input('stdin')))
  },

  async send_input_after_the_end_of_input(stand) {
    const followed = await start(stand, { process: bash('cat; exec sleep 344'), stdin: true })
    await stand.process.closeStdin({ process: byPid(followed.pid) })
    await refused(Code.Internal, /stdin/, () =>
      stand.process.sendInput({
        process: byPid(followed.pid),
        input: { input: { case: 'stdin', value: bytes('x') } },
      }),
    )
    await kill(stand, followed)
  },

  async close_stdin_needs_a_pipe(stand) {
    const terminal = await start(stand, {
      process: bash('exec sleep 345'),
      pty: { size: { rows: 24, cols: 80 } },
    })
    const close = (process) => () => stand.process.closeStdin({ process })
    await refused(Code.FailedPrecondition, /./, close(byPid(terminal.pid)))
    await refused(Code.NotFound, /4194999/, close(byPid(NO_PID)))
    await kill(stand, terminal)
  },

  async stream_input_arrives_piece_by_piece(stand) {
    const followed = await start(stand, {
      process: bash('while read line; do echo got $line; done'),
      stdin: true,
    })
    async function* pieces() {
      yield first(byPid(followed.pid))
      for (const piece of ['a', 'b', 'c']) {
        yield data('stdin', `${piece}\n`)
        // It must not wait for the end of the stream.
        await within(followed.until(`got ${piece}\n`), piece)
        yield KEEPALIVE
      }
    }
    await stand.process.streamInput(pieces())
    // The end of the stream is not the end of the input.
    await stand.process.sendInput({
      process: byPid(followed.pid),
      input: { input: { case: 'stdin', value: bytes('d\n') } },
    })
    await followed.until('got d\n')
    await stand.process.closeStdin({ process: byPid(followed.pid) })
    same((await followed.rest()).end, EXITED)
  },

  async stream_input_reaches_a_terminal_by_tag(stand) {
    const followed = await start(stand, {
      process: { cmd: '/bin/bash', args: ['-i', '-l'], envs: { TERM: 'dumb' } },
      pty: { size: { rows: 24, cols: 80 } },
      tag: 'terminal-of-a-stream',
    })
    async function* pieces() {
      yield first(byTag('terminal-of-a-stream'))
      yield data('pty', 'exit ')
      yield data('pty', '6\n')
    }
    await stand.process.streamInput(pieces())
    same((await followed.rest()).end.exitCode, 6)
  },

  async stream_input_must_name_a_command_first(stand) {
    const stream = (...pieces) => () =>
      stand.process.streamInput(
        (async function* () {
          yield* pieces
        })(),
      )
    await refused(Code.InvalidArgument, /./, stream(data('stdin', 'x')))
    await refused(Code.NotFound, /4194999/, stream(first(byPid(NO_PID))))
    await refused(Code.NotFound, /no-such-tag/, stream(first(byTag('no-such-tag')), data('stdin', 'x')))
    await refused(Code.InvalidArgument, /./, stream(first(undefined)))
  },

  async update_changes_the_size_of_a_terminal(stand) {
    const followed = await start(stand, {
      process: bash('stty size; read line; stty size'),
      pty: { size: { rows: 24, cols: 80 } },
    })
    await followed.until('24 80\r\n')
    await stand.process.update({
      process: byPid(followed.pid),
      pty: { size: { rows: 50, cols: 200 } },
    })
    // A request without a terminal changes nothing.
    await stand.process.update({ process: byPid(followed.pid) })
    await stand.process.sendInput({
      process: byPid(followed.pid),
      input: { input: { case: 'pty', value: bytes('\n') } },
    })
    await followed.until('50 200\r\n')
    same((await followed.rest()).end, EXITED)
  },

  async update_needs_a_terminal(stand) {
    const pty = { size: { rows: 1, cols: 1 } }
    const update = (process) => () => stand.process.update({ process, pty })
    const plain = await start(stand, { process: bash('exec sleep 346') })
    await refused(Code.FailedPrecondition, /./, update(byPid(plain.pid)))
    await kill(stand, plain)
    await refused(Code.NotFound, /4194999/, update(byPid(NO_PID)))
    await refused(Code.NotFound, /no-such-tag/, update(byTag('no-such-tag')))
  },

  async send_signal_reaches_the_one_process(stand) {
    const followed = await start(stand, {
      process: bash("trap 'echo caught; exit 8' TERM; echo ready; while :; do sleep 0.05; done"),
      stdin: false,
      tag: 'trap',
    })
    await followed.until('ready\n')
    await stand.process.sendSignal({ process: byTag('trap'), signal: 15 })
    const { stdout, end } = await followed.rest()
    same([stdout, end.exitCode], ['caught\n', 8])
  },

  async send_signal_knows_two_signals(stand) {
    const followed = await start(stand, { process: bash('exec sleep 347') })
    const signal = (process, signal) => () => stand.process.sendSignal({ process, signal })
    await refused(Code.InvalidArgument, /./, signal(byPid(followed.pid), 0))
    await refused(Code.NotFound, /4194999/, signal(byPid(NO_PID), 9))
    await refused(Code.NotFound, /no-such-tag/, signal(byTag('no-such-tag'), 9))
    await refused(Code.NotFound, /./, signal(byPid(1), 9))
    await kill(stand, followed)
    await refused(Code.NotFound, /./, signal(byPid(followed.pid), 9))
  },

  async a_silent_command_gives_signs_of_life(stand) {
    const followed = await start(
      stand,
      { process: bash('sleep 3.5; echo done'), stdin: false },
      { headers: { 'keepalive-ping-interval': '1' } },
    )
    const begin = Date.now()
    const kinds = []
    for (;;) {
      const event = await followed.next()
      if (event === undefined) break
      kinds.push(event.case)
      if (kinds.length === 1) assert(Date.now() - begin > 700, 'too early')
    }
    same(kinds.slice(-2), ['data', 'end'])
    const alive = kinds.slice(0, -2)
    assert(alive.length >= 2 && alive.length <= 4, `${kinds}`)
    assert(
      alive.every((kind) => kind === 'keepalive'),
      `${kinds}`,
    )
  },

  async a_talking_command_needs_no_signs_of_life(stand) {
    const followed = await start(
      stand,
      { process: bash('for i in 1 2 3 4 5; do echo $i; sleep 0.4; done'), stdin: false },
      { headers: { 'keepalive-ping-interval': '1' } },
    )
    for (;;) {
      const event = await followed.next()
      if (event === undefined) break
      assert(event.case !== 'keepalive')
    }
  },

  async a_followed_command_gives_signs_of_life(stand) {
    const followed = await start(stand, { process: bash('exec sleep 348') })
    const second = await new Followed(
      stand.process.connect(
        { process: byPid(followed.pid) },
        { headers: { 'keepalive-ping-interval': '1' } },
      ),
    ).started()
    same((await within(second.next(), 'a sign of life')).case, 'keepalive')
    await kill(stand, followed)
  },

  async a_deadline_ends_the_whole_tree(stand) {
    const begin = Date.now()
    await refused(Code.DeadlineExceeded, undefined, async () => {
      const followed = await start(
        stand,
        {
          process: bash(
            'sleep 349 & setsid sleep 349 & (setsid nohup sleep 349 >/dev/null 2>&1 &) ; sleep 349',
          ),
          stdin: false,
        },
        { timeoutMs: 1000 },
      )
      await followed.rest()
    })
    const took = Date.now() - begin
    assert(took > 900 && took < 15_000, `${took}`)
    await gone(stand, 'sleep 349')
  },

  async a_deadline_after_the_end_is_none(stand) {
    const followed = await start(stand, { process: bash('echo quick') }, { timeoutMs: 20_000 })
    same(await followed.rest(), { stdout: 'quick\n', stderr: '', pty: '', end: EXITED })
  },

  async a_client_that_leaves_does_not_end_its_command(stand) {
    const leave = new AbortController()
    const followed = await start(
      stand,
      { process: bash('while :; do echo noise; sleep 0.01; done'), tag: 'left' },
      { signal: leave.signal },
    )
    await followed.until('noise')
    leave.abort()
    await refused(Code.Canceled, undefined, () => followed.rest())
    const again = await new Followed(stand.process.connect({ process: byTag('left') })).started()
    await again.until('noise')
    await kill(stand, again)
  },

  async a_slow_reader_loses_nothing(stand) {
    const followed = await start(stand, { process: bash('seq 1 300000'), stdin: false })
    await new Promise((resolve) => setTimeout(resolve, 1000))
    const { stdout, end } = await followed.rest()
    assert(stdout === Array.from({ length: 300_000 }, (_, n) => `${n + 1}\n`).join(''))
    same(end, EXITED)
  },

  async many_commands_at_once(stand) {
    const ids = Array.from({ length: 40 }, (_, id) => id)
    same(
      await Promise.all(ids.map((id) => output(stand, `sleep 0.1; echo ${id}`))),
      ids.map((id) => `${id}\n`),
    )
    await eventually('an empty list', async () => {
      const { processes } = await stand.process.list({})
      return processes.length === 0
    })
  },
}
