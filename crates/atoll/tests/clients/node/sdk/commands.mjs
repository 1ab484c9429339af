// Commands: how they start, what they say, how they end.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'

import {
  AuthenticationError,
  CommandExitError,
  InvalidArgumentError,
  NotFoundError,
  SandboxError,
  TimeoutError,
} from 'e2b'

import { eventually, guest, HOME, NO_PID, raised, same, within } from '../suite.mjs'

const numbers = (count) => Array.from({ length: count }, (_, index) => `${index + 1}\n`).join('')

const fields = ({ stdout, stderr, exitCode, error }) => ({ stdout, stderr, exitCode, error })

async function endsWith(expected, wait) {
  const error = await raised(CommandExitError, wait)
  same(fields(error), { stdout: '', stderr: '', ...expected })
}

export const commands = {
  async the_sandbox_is_running({ sandbox }) {
    same(await sandbox.isRunning(), true)
  },

  async both_outputs_of_a_command({ run }) {
    const result = await run('echo out; echo err >&2')
    same(fields(result), { stdout: 'out\n', stderr: 'err\n', exitCode: 0, error: undefined })
  },

  async a_command_without_output({ run }) {
    same(fields(await run('true')), { stdout: '', stderr: '', exitCode: 0, error: undefined })
  },

  async exit_statuses({ run }) {
    for (const exitCode of [1, 7, 42, 127, 128, 255]) {
      await endsWith(
        { stdout: 'out\n', stderr: 'err\n', exitCode, error: `exit status ${exitCode}` },
        () => run(`echo out; echo err >&2; exit ${exitCode}`),
      )
    }
  },

  async ends_by_signal({ run }) {
    for (const [signal, error] of [
      ['KILL', 'signal: killed'],
      ['TERM', 'signal: terminated'],
      ['SEGV', 'signal: segmentation fault'],
    ]) {
      await endsWith({ stdout: 'before\n', exitCode: -1, error }, () =>
        run(`ulimit -c 0; echo before; kill -${signal} $$`),
      )
    }
  },

  async characters_split_over_chunks({ run }) {
    const result = await run(
      String.raw`printf '\xe2'; sleep 0.2; printf '\x82'; sleep 0.2; printf '\xac\xf0\x9f';` +
        String.raw` sleep 0.2; printf '\x98\x80\n'; printf '\xc3' >&2; sleep 0.2; printf '\xa9' >&2`,
    )
    same([result.stdout, result.stderr], ['€😀\n', 'é'])
  },

  async five_megabytes_of_output({ output }) {
    const expected = numbers(750_000)
    assert(expected.length > 5_000_000)
    assert((await output('seq 1 750000')) === expected)
  },

  async both_outputs_full_at_once({ run }) {
    const result = await run('(seq 1 200000 >&2) & seq 1 200000; wait')
    assert(result.stdout === numbers(200_000))
    assert(result.stderr === numbers(200_000))
  },

  async variables_of_the_sandbox({ output }) {
    same(
      await output('echo "$E2B_SANDBOX,$E2B_SANDBOX_ID,$E2B_TEMPLATE_ID,$SUITE_VARIABLE"'),
      `true,${guest.sandboxId},${guest.templateId},from the suite\n`,
    )
  },

  async variables_of_the_user({ output }) {
    const script = 'echo "$HOME,$USER,$LOGNAME,$(id -un):$(id -gn)"'
    same(await output(script), `${HOME},user,user,user:user\n`)
    same(await output(script, { user: 'root' }), '/root,root,root,root:root\n')
  },

  async variables_of_a_command_win({ output }) {
    same(
      await output('echo "$SUITE_VARIABLE,$OWN,$EMPTY"', {
        envs: { SUITE_VARIABLE: 'mine', OWN: "a b=c 'd'", EMPTY: '' },
      }),
      "mine,a b=c 'd',\n",
    )
    same(await output('echo $SUITE_VARIABLE$OWN'), 'from the suite\n')
  },

  async working_directories({ files, directory, name, output }) {
    await files.makeDir(directory)
    for (const [cwd, expected] of [
      [undefined, HOME],
      ['/usr/share', '/usr/share'],
      [directory, directory],
      [name, directory],
      ['~', HOME],
    ]) {
      same(await output('pwd', { cwd }), `${expected}\n`)
    }
  },

  async a_working_directory_that_is_missing({ run }) {
    const error = await raised(InvalidArgumentError, () => run('pwd', { cwd: '/no/such/directory' }))
    same(error.message, "[invalid_argument] cwd '/no/such/directory' does not exist")
  },

  async users_and_their_groups({ output }) {
    same(await output('id'), 'uid=1000(user) gid=1000(user) groups=1000(user)\n')
    same(await output('id', { user: 'root' }), 'uid=0(root) gid=0(root) groups=0(root)\n')
  },

  async a_user_that_is_missing({ run }) {
    const error = await raised(AuthenticationError, () => run('id', { user: 'nobody-here' }))
    same(error.message, "[unauthenticated] invalid username: 'nobody-here'")
  },

  async a_token_that_is_wrong({ stranger }) {
    const other = stranger()
    for (const call of [
      () => other.run('id'),
      () => other.commands.list(),
      () => other.commands.kill(1),
      () => other.files.list('/'),
      () => other.files.read('/etc/hostname'),
      () => other.files.write('x', 'y'),
    ]) {
      await raised(AuthenticationError, call)
    }
    same(await other.sandbox.isRunning(), true)
  },

  async a_command_in_the_background({ start, commands, output }) {
    const handle = await start('echo started; read line; echo got $line', { stdin: true })
    // Its pid is the one that programs in the sandbox know.
    same(await output(`kill -0 ${handle.pid} && echo alive`), 'alive\n')
    await commands.sendStdin(handle.pid, 'go\n')
    const result = await handle.wait()
    same(fields(result), {
      stdout: 'started\ngot go\n',
      stderr: '',
      exitCode: 0,
      error: undefined,
    })
  },

  async a_killed_command({ start, commands, runs }) {
    const handle = await start('exec sleep 321')
    same(await handle.kill(), true)
    await endsWith({ exitCode: -1, error: 'signal: killed' }, () => handle.wait())
    same(await handle.kill(), false)
    same(await commands.kill(handle.pid), false)
    same(await runs('sleep 321'), false)
  },

  async killing_what_is_not_there({ commands }) {
    same(await commands.kill(NO_PID), false)
    same(await commands.kill(1), false)
  },

  async a_command_beyond_its_time({ run, runs }) {
    const begin = Date.now()
    await raised(TimeoutError, () =>
      run('sleep 322 & setsid sleep 322 & sleep 322', { timeoutMs: 1000 }),
    )
    const took = Date.now() - begin
    assert(took > 900 && took < 15_000, `${took}`)
    await eventually('the end of the tree', async () => !(await runs('sleep 322')))
  },

  async no_limit_of_time({ run }) {
    same((await run('sleep 1.5; echo done', { timeoutMs: 0 })).stdout, 'done\n')
  },

  async a_command_reads_what_is_sent({ start, commands }) {
    const handle = await start('cat; echo end >&2', { stdin: true })
    await handle.sendStdin('text, ')
    await handle.sendStdin(new TextEncoder().encode('bytes €, '))
    await commands.sendStdin(handle.pid, 'and more')
    await handle.closeStdin()
    const result = await handle.wait()
    same([result.stdout, result.stderr], ['text, bytes €, and more', 'end\n'])
  },

  async a_megabyte_is_sent({ start, commands }) {
    const handle = await start('sha256sum', { stdin: true })
    const chunk = '0123456789abcdef'.repeat(8192)
    const hash = createHash('sha256')
    for (let count = 0; count < 8; count++) {
      await handle.sendStdin(chunk)
      hash.update(chunk)
    }
    await commands.closeStdin(handle.pid)
    same((await handle.wait()).stdout, `${hash.digest('hex')}  -\n`)
  },

  async input_is_empty_unless_asked_for({ run }) {
    same((await run('cat; readlink /proc/self/fd/0')).stdout, '/dev/null\n')
  },

  async sending_to_a_command_without_input({ start, commands }) {
    const handle = await start('exec sleep 323')
    await raised(SandboxError, () => commands.sendStdin(handle.pid, 'text'))
    same(await handle.kill(), true)
    await raised(CommandExitError, () => handle.wait())
  },

  async sending_to_what_is_not_there({ commands }) {
    await raised(NotFoundError, () => commands.sendStdin(NO_PID, 'x'))
    await raised(NotFoundError, () => commands.closeStdin(NO_PID))
    await raised(NotFoundError, () => commands.connect(NO_PID))
  },

  async running_commands_are_listed({ start, commands }) {
    const handle = await start('exec sleep 324', { envs: { A: '1' }, cwd: '/usr' })
    const listed = (await commands.list()).find(({ pid }) => pid === handle.pid)
    same(listed, {
      pid: handle.pid,
      cmd: '/bin/bash',
      args: ['-l', '-c', 'exec sleep 324'],
      envs: { A: '1' },
      cwd: '/usr',
    })
    same(await handle.kill(), true)
    await raised(CommandExitError, () => handle.wait())
    const left = (await commands.list()).map(({ pid }) => pid)
    assert(!left.includes(handle.pid))
  },

  async a_second_handle_hears_what_comes_after_it({ start, commands }) {
    let said
    const began = new Promise((resolve) => (said = resolve))
    const first = await start('echo before; read line; echo $line', { stdin: true, onStdout: said })
    same(await within(began, 'the first line'), 'before\n')
    const heard = []
    const second = await commands.connect(first.pid, { onStdout: (text) => void heard.push(text) })
    same(second.pid, first.pid)
    await second.sendStdin('after\n')
    same((await second.wait()).stdout, 'after\n')
    same(heard, ['after\n'])
    same((await first.wait()).stdout, 'before\nafter\n')
  },

  async connecting_to_what_has_just_ended({ start, commands }) {
    const handle = await start('echo out; exit 3')
    await endsWith({ stdout: 'out\n', exitCode: 3, error: 'exit status 3' }, () => handle.wait())
    const again = await commands.connect(handle.pid)
    await endsWith({ exitCode: 3, error: 'exit status 3' }, () => again.wait())
  },

  async a_client_that_leaves_does_not_end_its_command({ start, commands }) {
    const handle = await start('exec sleep 325')
    await handle.disconnect()
    const listed = (await commands.list()).map(({ pid }) => pid)
    assert(listed.includes(handle.pid), `${listed}`)
    const again = await commands.connect(handle.pid)
    same(await again.kill(), true)
    await endsWith({ exitCode: -1, error: 'signal: killed' }, () => again.wait())
  },

  async output_arrives_in_order_and_at_once({ run }) {
    const heard = []
    const begin = Date.now()
    const hear = (text) => void heard.push([text, Date.now() - begin])
    await run(
      'for i in 1 2 3; do echo out$i; sleep 0.2; echo err$i >&2; sleep 0.2; done; sleep 1',
      { onStdout: hear, onStderr: hear },
    )
    const took = Date.now() - begin
    same(
      heard.map(([text]) => text),
      ['out1\n', 'err1\n', 'out2\n', 'err2\n', 'out3\n', 'err3\n'],
    )
    assert(heard[0][1] < took - 1500, `${heard} ${took}`)
  },

  async an_aborted_request_does_not_end_its_command({ start, runs, commands }) {
    const abort = new AbortController()
    const handle = await start('exec sleep 326', { signal: abort.signal })
    abort.abort()
    await raised(TimeoutError, () => handle.wait())
    same(await runs('sleep 326'), true)
    same(await commands.kill(handle.pid), true)
  },

  async forty_commands_at_once({ output }) {
    const ids = Array.from({ length: 40 }, (_, id) => id)
    same(
      await Promise.all(ids.map((id) => output(`sleep 0.2; echo ${id}`))),
      ids.map((id) => `${id}\n`),
    )
  },
}
