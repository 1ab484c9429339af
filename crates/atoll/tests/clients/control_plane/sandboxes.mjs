// What E2B's JavaScript SDK does with the control plane alone: no command is run.
// Prints `ok NAME` for each case; any failure ends it.

import assert from 'node:assert/strict'
import { AuthenticationError, Sandbox, SandboxError } from 'e2b'

const done = (name) => console.log(`ok ${name}`)

const metadata = { 'a b': 'c&d/ü+%' }
const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata, envs: { X: '1' } })
const info = await sandbox.getInfo()
assert.equal(info.sandboxId, sandbox.sandboxId)
assert.deepEqual(info.metadata, metadata)
assert.equal(info.state, 'running')
assert.equal(info.endAt - info.startedAt, 120_000)
done('create and info')

const names = async (options) => {
  const found = []
  const pages = Sandbox.list(options)
  while (pages.hasNext) found.push(...(await pages.nextItems()).map((one) => one.sandboxId))
  return found
}
assert.deepEqual(await names({ query: { metadata } }), [sandbox.sandboxId])
assert.deepEqual(await names({ query: { metadata: { 'a b': 'other' } } }), [])
const second = await Sandbox.create({ timeoutMs: 60_000 })
assert.deepEqual(await names({ limit: 1 }), [second.sandboxId, sandbox.sandboxId])
done('lists')

await sandbox.setTimeout(600_000)
const later = (await sandbox.getInfo()).endAt
assert.ok(later > info.endAt)
const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 30_000 })
assert.equal(again.sandboxId, sandbox.sandboxId)
assert.equal((await again.getInfo()).endAt.getTime(), later.getTime())
done('timeouts and connect')

await sandbox.updateNetwork({ allowOut: ['192.0.2.1'], denyOut: ['0.0.0.0/0'] })
await sandbox.updateNetwork({})
await assert.rejects(sandbox.updateNetwork({ denyOut: ['example.com'] }), SandboxError)
done('network')

assert.equal(await second.kill(), true)
assert.equal(await second.kill(), false)
assert.equal(await Sandbox.kill(second.sandboxId), false)
await assert.rejects(second.getInfo())
await assert.rejects(Sandbox.connect(second.sandboxId))
done('kill')

await assert.rejects(Sandbox.create('no-such-template'), SandboxError)
await assert.rejects(Sandbox.create({ timeoutMs: 1e9 }), /Timeout cannot be greater than 24 hours/)
const apiKey = 'e2b_' + '0'.repeat(40)
await assert.rejects(Sandbox.create({ apiKey }), AuthenticationError)
done('errors')

await sandbox.files.write('/home/user/state', 'first')
const snapshot = await sandbox.createSnapshot({ name: 'work:v1' })
assert.equal(snapshot.snapshotId, 'default/work:v1')
assert.equal(await sandbox.isRunning(), true)
await sandbox.files.write('/home/user/state', 'second')
const other = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 })
assert.equal(await other.files.read('/home/user/state'), 'first')
await other.kill()
assert.deepEqual((await Sandbox.listSnapshots({ name: 'work' }).nextItems()).map((one) => one.snapshotId), [
  snapshot.snapshotId,
])
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
assert.deepEqual(await sandbox.listSnapshots().nextItems(), [])
done('snapshots')

const forks = await sandbox.fork({ count: 2, timeoutMs: 60_000 })
for (const fork of forks) {
  assert.equal(await fork.files.read('/home/user/state'), 'second')
  await fork.files.write('/home/user/state', fork.sandboxId)
}
assert.equal(await forks[0].files.read('/home/user/state'), forks[0].sandboxId)
assert.equal(await sandbox.files.read('/home/user/state'), 'second')
for (const fork of forks) assert.equal(await fork.kill(), true)
done('forks')

await sandbox.files.write('/tmp/kept', 'kept')
assert.equal(await sandbox.pause(), true)
assert.equal(await sandbox.isRunning(), false)
assert.equal(await sandbox.pause(), false)
assert.equal((await sandbox.getInfo()).state, 'paused')
await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
assert.equal(await sandbox.isRunning(), true)
assert.equal(await sandbox.files.read('/tmp/kept'), 'kept')
done('pause and resume')

if (process.env.TIER === 'container') {
  const boot = await sandbox.files.read('/proc/sys/kernel/random/boot_id')
  assert.equal(await sandbox.pause({ keepMemory: false }), true)
  assert.equal(await sandbox.isRunning(), false)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
  assert.equal(await sandbox.files.read('/tmp/kept'), 'kept')
  assert.notEqual(await sandbox.files.read('/proc/sys/kernel/random/boot_id'), boot)
}
done('pause without memory')
assert.equal(await sandbox.kill(), true)
