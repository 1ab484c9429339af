// E2B's JavaScript SDK 1.x, which knows servers by their domain alone.

import assert from 'node:assert/strict'
import { Sandbox } from 'e2b-1'

const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { version: 'one' } })
assert(await sandbox.isRunning())
console.log('ok create')

const { stdout, stderr } = await sandbox.commands.run('echo out; echo err >&2')
assert.deepEqual([stdout, stderr], ['out\n', 'err\n'])
await assert.rejects(sandbox.commands.run('exit 3'), { exitCode: 3 })
console.log('ok commands')

await sandbox.files.write('one/two.txt', 'content')
assert.equal(await sandbox.files.read('one/two.txt'), 'content')
assert.deepEqual((await sandbox.files.list('one')).map((entry) => entry.name), ['two.txt'])
console.log('ok files')

await sandbox.kill()
assert(!(await sandbox.isRunning()))
console.log('ok kill')
