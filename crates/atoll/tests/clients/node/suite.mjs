// Cases, and what they share.
//
// A case is an async function in an object by its name; it gets whatever the
// program made for it. Each goes out as one line of JSON:
// `{"name": …, "ok": …, "detail": …}`.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'

const FACTOR = Number(process.env.ATOLL_TEST_TIME_FACTOR ?? 1)

// What no case comes close to, whatever it waits for.
const CASE_BOUND_MS = 90_000 * FACTOR

// What no single answer takes.
export const BOUND_MS = 20_000 * FACTOR

export const guest = {
  url: process.env.GUEST_URL,
  token: process.env.GUEST_TOKEN,
  sandboxId: process.env.GUEST_SANDBOX_ID,
  templateId: process.env.GUEST_TEMPLATE_ID,
}

export const HOME = '/home/user'

// A pid that no process has: beyond the kernel's largest.
export const NO_PID = 4_194_999

export function same(actual, expected) {
  assert.deepStrictEqual(actual, expected)
}

/** The error of exactly this class that `call` ends with. */
export async function raised(kind, call) {
  let answer
  try {
    answer = await call()
  } catch (error) {
    assert(error.constructor === kind, `expected ${kind.name}, got ${inspect(error)}`)
    return error
  }
  assert.fail(`expected ${kind.name}, got the answer ${inspect(answer)}`)
}

/** Asks until the answer is true. */
export async function eventually(what, question) {
  const end = Date.now() + BOUND_MS
  for (;;) {
    const answer = await question()
    if (answer) return answer
    assert(Date.now() < end, `waited in vain for ${what}`)
    await sleep(20)
  }
}

export function within(promise, what, bound = BOUND_MS) {
  const late = new AbortController()
  const timeout = sleep(bound, undefined, { signal: late.signal }).then(() => {
    throw new Error(`${what} did not come within ${bound} ms`)
  })
  return Promise.race([promise, timeout]).finally(() => late.abort())
}

/** Runs those of the cases whose names contain `wanted`, one after the other. */
export async function run(groups, wanted, prepare) {
  // A promise that nobody waits for any more belongs to a case that failed already.
  process.on('unhandledRejection', (error) => console.error('unhandled', error))
  for (const [name, attempt] of groups.flatMap(Object.entries)) {
    if (!name.includes(wanted)) continue
    console.error(`${name} …`)
    let detail = null
    try {
      await within(Promise.resolve(prepare(name)).then(attempt), 'the end', CASE_BOUND_MS)
    } catch (error) {
      detail = error?.stack ?? inspect(error)
      if (error?.cause) detail += `\ncause: ${inspect(error.cause)}`
    }
    console.log(JSON.stringify({ name, ok: detail === null, detail: detail ?? '' }))
  }
  // Connections of cases that hang are left behind.
  process.exit(0)
}
