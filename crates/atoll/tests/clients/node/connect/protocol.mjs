// The Connect protocol itself, where its own client would hide what the guest
// says: plain requests.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

import { Code } from '@connectrpc/connect'

import { eventually, guest, HOME, same } from '../suite.mjs'
import { bash, byPid, kill, refused, start } from './calls.mjs'

const UNAUTHORIZED = {
  code: 401,
  message:
    'unauthorized access, please provide a valid access token or method signing if supported',
}

const ask = (method, body, headers = {}) =>
  fetch(`${guest.url}/${method}`, {
    method: 'POST',
    body,
    headers: {
      'x-access-token': guest.token,
      'content-type': 'application/json',
      'connect-protocol-version': '1',
      ...headers,
    },
  })

const json = async (method, body, headers) => {
  const answer = await ask(method, JSON.stringify(body), headers)
  return [answer.status, await answer.json()]
}

function frame(message, flags = 0) {
  const payload = Buffer.from(typeof message === 'string' ? message : JSON.stringify(message))
  const head = Buffer.alloc(5)
  head.writeUInt8(flags, 0)
  head.writeUInt32BE(payload.length, 1)
  return Buffer.concat([head, payload])
}

function frames(buffer) {
  const found = []
  for (let at = 0; at < buffer.length; ) {
    const end = at + 5 + buffer.readUInt32BE(at + 1)
    found.push([buffer[at], JSON.parse(buffer.subarray(at + 5, end).toString())])
    at = end
  }
  return found
}

async function stream(method, body, headers = {}) {
  const answer = await ask(method, body, { 'content-type': 'application/connect+json', ...headers })
  same([answer.status, answer.headers.get('content-type')], [200, 'application/connect+json'])
  return frames(Buffer.from(await answer.arrayBuffer()))
}

export const protocol = {
  async a_missing_token(stand) {
    for (const token of [undefined, 'wrong', '']) {
      const { process, filesystem } = stand.services(token)
      await refused(Code.Unauthenticated, undefined, () => process.list({}))
      await refused(Code.Unauthenticated, undefined, () => filesystem.stat({ path: '/' }))
      await refused(Code.Unauthenticated, undefined, () =>
        start({ process }, { process: bash('true') }),
      )
    }
    const answer = await ask('process.Process/List', '{}', { 'x-access-token': 'wrong' })
    same([answer.status, await answer.json()], [401, UNAUTHORIZED])
  },

  async a_refusal_has_the_status_of_its_code() {
    for (const [method, body, status, code] of [
      ['filesystem.Filesystem/Stat', { path: '/no/such' }, 404, 'not_found'],
      ['filesystem.Filesystem/Stat', { path: '~root' }, 400, 'invalid_argument'],
      ['filesystem.Filesystem/MakeDir', { path: '/etc' }, 409, 'already_exists'],
      ['filesystem.Filesystem/ListDir', { path: '/etc/passwd' }, 400, 'invalid_argument'],
      ['process.Process/SendSignal', { process: { pid: 4194999 }, signal: 9 }, 404, 'not_found'],
      ['process.Process/CloseStdin', {}, 400, 'invalid_argument'],
    ]) {
      const [given, answer] = await json(method, body)
      same([method, given, answer.code], [method, status, code])
      assert(answer.message.length > 0)
    }
  },

  async an_empty_answer_is_an_empty_object() {
    same(await json('filesystem.Filesystem/Remove', { path: '/tmp/no-such-file' }), [200, {}])
  },

  async spellings_of_json(stand) {
    const followed = await start(stand, { process: bash('exec sleep 351'), tag: 'spelling' })
    // Unknown fields are ignored, enums may be numbers, names may be those of the files.
    same(
      await json('process.Process/SendSignal', {
        process: { pid: followed.pid, unknown: 1 },
        signal: 'SIGNAL_SIGKILL',
        other: { x: [] },
      }),
      [200, {}],
    )
    await followed.rest()
    const [status, { watcherId }] = await json('filesystem.Filesystem/CreateWatcher', {
      path: '/tmp',
      include_entry: true,
      allow_network_mounts: false,
    })
    same(status, 200)
    same(await json('filesystem.Filesystem/RemoveWatcher', { watcher_id: watcherId }), [200, {}])
  },

  async answers_are_spelled_as_clients_expect(stand) {
    const [, { entry }] = await json('filesystem.Filesystem/Stat', { path: '/etc/passwd' })
    same([entry.type, entry.mode, entry.permissions], ['FILE_TYPE_FILE', 0o644, '-rw-r--r--'])
    assert(/^\d+$/.test(String(entry.size)), `${entry.size}`)
    assert(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(entry.modifiedTime), entry.modifiedTime)
    for (const absent of ['symlinkTarget', 'isSymlink', 'metadata']) assert(!(absent in entry))
    const followed = await start(stand, { process: bash('exec sleep 352') })
    const [, { processes }] = await json('process.Process/List', {})
    const listed = processes.find(({ pid }) => pid === followed.pid)
    same(listed, {
      config: { cmd: '/bin/bash', args: ['-l', '-c', 'exec sleep 352'] },
      pid: followed.pid,
    })
    await kill(stand, followed)
  },

  async a_stream_ends_with_its_last_frame() {
    const all = await stream(
      'process.Process/Start',
      frame({ process: { cmd: '/bin/bash', args: ['-c', 'echo hi; exit 2'] }, stdin: false }),
    )
    const pid = all[0]?.[1]?.event?.start?.pid
    assert(pid > 1)
    const status = 'exit status 2'
    same(all, [
      [0, { event: { start: { pid } } }],
      [0, { event: { data: { stdout: 'aGkK' } } }],
      [0, { event: { end: { exitCode: 2, exited: true, status, error: status } } }],
      [2, {}],
    ])
  },

  async a_refused_stream_is_a_success_of_http() {
    for (const [method, message, error] of [
      [
        'process.Process/Start',
        { process: { cmd: 'true', cwd: '/no/such' } },
        { code: 'invalid_argument', message: "cwd '/no/such' does not exist" },
      ],
      [
        'process.Process/Connect',
        { process: { pid: 4194999 } },
        { code: 'not_found', message: 'process with pid 4194999 not found' },
      ],
    ]) {
      same(await stream(method, frame(message)), [[2, { error }]])
    }
    const [[flags, { error }]] = await stream(
      'filesystem.Filesystem/WatchDir',
      frame({ path: '/no/such' }),
    )
    same([flags, error.code], [2, 'not_found'])
  },

  async a_deadline_is_told_in_the_last_frame() {
    const all = await stream(
      'process.Process/Start',
      frame({ process: { cmd: 'sleep', args: ['353'] }, stdin: false }),
      { 'connect-timeout-ms': '700' },
    )
    same(all.slice(1), [
      [2, { error: { code: 'deadline_exceeded', message: 'context deadline exceeded' } }],
    ])
  },

  async an_input_stream_is_answered_with_two_frames(stand) {
    const followed = await start(stand, { process: bash('cat'), stdin: true })
    const pieces = [
      { start: { process: { pid: followed.pid } } },
      { data: { input: { stdin: 'YQ==' } } },
      { keepalive: {} },
      { data: { input: { stdin: 'Yg==' } } },
    ]
    same(await stream('process.Process/StreamInput', Buffer.concat(pieces.map((p) => frame(p)))), [
      [0, {}],
      [2, {}],
    ])
    await stand.process.closeStdin({ process: byPid(followed.pid) })
    same((await followed.rest()).stdout, 'ab')
  },

  async an_ended_command_is_remembered_for_half_a_minute(stand) {
    const followed = await start(stand, { process: bash('exit 3') })
    await followed.rest()
    const ended = Date.now()
    const method = 'process.Process/Connect'
    const connect = () => stream(method, frame({ process: { pid: followed.pid } }))
    const status = 'exit status 3'
    while (Date.now() - ended < 25_000) {
      same(await connect(), [
        [0, { event: { start: { pid: followed.pid } } }],
        [0, { event: { end: { exitCode: 3, exited: true, status, error: status } } }],
        [2, {}],
      ])
      await sleep(1000)
    }
    await eventually('the end of the memory', async () => {
      const [[flags, { error }]] = await connect()
      return flags === 2 && error.code === 'not_found'
    })
  },

  async streams_are_not_compressed() {
    const answer = await ask(
      'process.Process/Start',
      frame({ process: { cmd: 'seq', args: ['1', '10000'] }, stdin: false }),
      {
        'content-type': 'application/connect+json',
        'accept-encoding': 'gzip, br, zstd',
        'connect-accept-encoding': 'gzip',
      },
    )
    same(answer.headers.get('content-encoding'), null)
    const all = frames(Buffer.from(await answer.arrayBuffer()))
    assert(
      all.every(([flags]) => flags === 0 || flags === 2),
      'a compressed frame',
    )
  },

  async what_is_not_understood_is_refused_and_survived() {
    for (const [method, body, headers] of [
      ['process.Process/List', 'no json', {}],
      ['process.Process/List', '{"a":', {}],
      ['filesystem.Filesystem/Stat', '{"path":5}', {}],
      ['filesystem.Filesystem/Stat', Buffer.from([0xff, 0xff]), { 'content-type': 'application/proto' }],
    ]) {
      const answer = await ask(method, body, headers)
      const { code } = await answer.json()
      same([method, answer.status, code], [method, 400, 'invalid_argument'])
    }
    const unknown = await ask('process.Process/NoSuchMethod', '{}')
    assert([404, 501].includes(unknown.status), `${unknown.status}`)
    const kind = await ask('process.Process/List', '{}', { 'content-type': 'text/plain' })
    same(kind.status, 415)
    same((await json('process.Process/List', {}))[0], 200)
  },

  async frames_that_are_cut_off_are_refused() {
    for (const [body, code] of [
      [Buffer.from([0, 0, 0]), 'invalid_argument'],
      [Buffer.from([0, 0, 0, 0, 99, 0x7b]), 'invalid_argument'],
      [frame('{"process":'), 'invalid_argument'],
      // As Connect's own servers call a request without a message.
      [Buffer.alloc(0), 'unimplemented'],
    ]) {
      const all = await stream('process.Process/Start', body)
      same(all.length, 1)
      const [[flags, { error }]] = all
      same([flags, error.code], [2, code])
    }
  },

  async the_variables_of_the_sandbox_are_told() {
    const answer = await fetch(`${guest.url}/envs`, { headers: { 'x-access-token': guest.token } })
    same(
      [answer.status, await answer.json()],
      [
        200,
        {
          E2B_SANDBOX: 'true',
          E2B_SANDBOX_ID: guest.sandboxId,
          E2B_TEMPLATE_ID: guest.templateId,
          SUITE_VARIABLE: 'from the suite',
        },
      ],
    )
    same((await fetch(`${guest.url}/envs`)).status, 401)
  },

  async health_is_for_everybody() {
    const answer = await fetch(`${guest.url}/health`)
    same(
      [answer.status, answer.headers.get('cache-control'), await answer.text()],
      [204, 'no-store', ''],
    )
  },

  async measurements() {
    const answer = await fetch(`${guest.url}/metrics`, { headers: { 'x-access-token': guest.token } })
    same(answer.status, 200)
    const metrics = await answer.json()
    for (const name of [
      'ts',
      'cpu_count',
      'cpu_used_pct',
      'mem_total',
      'mem_used',
      'mem_cache',
      'mem_total_mib',
      'mem_used_mib',
      'disk_used',
      'disk_total',
    ]) {
      same([name, typeof metrics[name]], [name, 'number'])
    }
    assert(metrics.cpu_count >= 1 && metrics.mem_total > metrics.mem_used)
    assert(metrics.disk_total > metrics.disk_used)
    assert(Math.abs(metrics.ts - Date.now() / 1000) < 60, `${metrics.ts}`)
    same((await fetch(`${guest.url}/metrics`)).status, 401)
  },

  async files_are_put_together(stand) {
    const path = (name) => `${stand.directory}/${name}`
    for (const name of ['1', '2']) {
      await fetch(`${guest.url}/files?path=${path(name)}`, {
        method: 'POST',
        body: `part ${name}\n`,
        headers: { 'x-access-token': guest.token, 'content-type': 'application/octet-stream' },
      })
    }
    const compose = (body, token = guest.token) =>
      fetch(`${guest.url}/files/compose`, {
        method: 'POST',
        body: JSON.stringify(body),
        headers: { 'x-access-token': token, 'content-type': 'application/json' },
      })
    const answer = await compose({
      source_paths: [path('1'), path('2')],
      destination: path('whole'),
    })
    same(answer.status, 200)
    const whole = await fetch(`${guest.url}/files?path=${path('whole')}`, {
      headers: { 'x-access-token': guest.token },
    })
    same(await whole.text(), 'part 1\npart 2\n')
    same((await compose({ source_paths: [path('missing')], destination: path('x') })).status, 404)
    same((await compose({}, 'wrong')).status, 401)
  },

  async init_is_not_for_clients() {
    const init = (headers) =>
      fetch(`${guest.url}/init`, {
        method: 'POST',
        body: JSON.stringify({ accessToken: 'taken over', envVars: {} }),
        headers: { 'content-type': 'application/json', ...headers },
      })
    same((await init({})).status, 401)
    same((await init({ 'x-access-token': 'wrong' })).status, 401)
    same((await json('filesystem.Filesystem/Stat', { path: '~' }))[1].entry.path, HOME)
  },
}
