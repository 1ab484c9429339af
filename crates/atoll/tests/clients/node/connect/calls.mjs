// What cases of both services do all the time.

import assert from 'node:assert/strict'
import { inspect } from 'node:util'

import { Code, ConnectError } from '@connectrpc/connect'

import { eventually, same } from '../suite.mjs'

export const as = (user) => ({
  headers: { authorization: `Basic ${Buffer.from(`${user}:`).toString('base64')}` },
})

/** A call that must end with this code and, if given, this text. */
export async function refused(code, message, call) {
  let answer
  try {
    answer = await call()
  } catch (error) {
    assert(error instanceof ConnectError, inspect(error))
    same(Code[error.code], Code[code])
    if (typeof message === 'string') same(error.rawMessage, message)
    else if (message) assert.match(error.rawMessage, message)
    return error
  }
  assert.fail(`expected ${Code[code]}, got the answer ${inspect(answer)}`)
}

export const byPid = (pid) => ({ selector: { case: 'pid', value: pid } })
export const byTag = (tag) => ({ selector: { case: 'tag', value: tag } })

export const bash = (script, other = {}) => ({
  cmd: '/bin/bash',
  args: ['-l', '-c', script],
  ...other,
})

const text = new TextDecoder()
export const bytes = (string) => new TextEncoder().encode(string)

/** A command as its stream tells of it. */
export class Followed {
  constructor(stream) {
    this.events = stream[Symbol.asyncIterator]()
  }

  /** The next event; keep-alives count. Nothing after the last. */
  async next() {
    const { value, done } = await this.events.next()
    return done ? undefined : value.event.event
  }

  async started() {
    const event = await this.next()
    same(event?.case, 'start')
    assert(event.value.pid > 1)
    this.pid = event.value.pid
    return this
  }

  /** Everything up to the end of the stream, the end of the command last. */
  async rest() {
    const output = { stdout: '', stderr: '', pty: '' }
    let end
    for (;;) {
      const event = await this.next()
      if (event === undefined) break
      assert(end === undefined, 'events after the end')
      if (event.case === 'data') {
        const { case: kind, value } = event.value.output
        assert(value.length > 0 && value.length <= 32 * 1024, `${value.length} bytes at once`)
        output[kind] += text.decode(value)
      } else if (event.case === 'end') {
        const { exitCode, exited, status, error } = event.value
        end = { exitCode, exited, status, error }
      } else {
        same(event.case, 'keepalive')
      }
    }
    return { ...output, end }
  }

  /** Waits until output holds `wanted`. */
  async until(wanted) {
    let seen = ''
    while (!seen.includes(wanted)) {
      const event = await this.next()
      assert(event, `ended before ${JSON.stringify(wanted)}: ${JSON.stringify(seen)}`)
      if (event.case === 'data') seen += text.decode(event.value.output.value)
      else same(event.case, 'keepalive')
    }
    return seen
  }
}

export const EXITED = { exitCode: 0, exited: true, status: 'exit status 0', error: undefined }
export const KILLED = {
  exitCode: -1,
  exited: false,
  status: 'signal: killed',
  error: 'signal: killed',
}

export function start({ process }, request, options) {
  return new Followed(process.start(request, options)).started()
}

/** What a script prints, and how it ends. */
export async function run(stand, script, options) {
  const followed = await start(stand, { process: bash(script), stdin: false }, options)
  return followed.rest()
}

export async function output(stand, script, options) {
  const { stdout, stderr, end } = await run(stand, script, options)
  same([stderr, end], ['', EXITED])
  return stdout
}

export async function kill({ process }, followed) {
  await process.sendSignal({ process: byPid(followed.pid), signal: 9 })
  same((await followed.rest()).end, KILLED)
}

/** Waits until no process has this in its command line. */
export function gone(stand, pattern) {
  const script = `pgrep -f '[${pattern[0]}]${pattern.slice(1)}' || true`
  return eventually(`the end of ${pattern}`, async () => (await output(stand, script)) === '')
}
