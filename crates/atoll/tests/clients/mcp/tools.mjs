// Every tool, called by the official MCP client for TypeScript.
//
// `tools.mjs stdio|http`, with the same variables as `tools.py`. One line per
// case that held; any failure ends it.

import assert from 'node:assert/strict'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

const held = (name) => console.log(`ok ${name}`)
const way = process.argv[2]

const transport = (key = process.env.ATOLL_KEY) => {
  if (way === 'stdio') {
    const [command, ...args] = process.env.ATOLL_MCP.split(' ')
    return new StdioClientTransport({ command, args, env: process.env })
  }
  const headers = { 'X-API-Key': key }
  return new StreamableHTTPClientTransport(new URL(process.env.ATOLL_URL), { requestInit: { headers } })
}

const connect = async () => {
  const client = new Client({ name: 'test', version: '1.0.0' })
  await client.connect(transport())
  return client
}

const client = await connect()
const call = async (name, args = {}, options = {}) => {
  const result = await client.callTool({ name, arguments: args }, undefined, options)
  assert.ok(!result.isError, JSON.stringify(result))
  return result.structuredContent
}

const { tools } = await client.listTools()
assert.equal(tools.length, 15)
held('list')

assert.equal((await call('run_code', { code: '6 * 7' })).results[0].text, '42')
assert.equal((await call('execute_command', { command: 'echo $HOME' })).stdout, '/home/user\n')
await call('write_file', { path: 'a.txt', content: 'needle' })
assert.equal((await call('read_file', { path: 'a.txt' })).content, 'needle')
assert.ok((await call('list_files')).entries.some((one) => one.path === '/home/user/a.txt'))
assert.equal((await call('search_files', { pattern: 'needle' })).matches.length, 1)
const { process_id } = await call('start_process', { command: 'cat' })
assert.equal((await call('write_process', { process_id, input: 'echoed\n', wait: 20 })).output, 'echoed\n')
await call('read_process', { process_id, wait: 0 })
assert.equal((await call('stop_process', { process_id })).state, 'ended')
const { sandbox_id } = await call('create_sandbox')
assert.equal((await call('list_sandboxes')).sandboxes.length, 2)
assert.match((await call('preview_url', { port: 8000, sandbox_id })).url, /^https?:/)
await call('kill_sandbox', { sandbox_id })
const packages = { manager: 'npm', packages: ['--no'] }
const refused = await client.callTool({ name: 'install_packages', arguments: packages })
assert.equal(refused._meta['atoll/error'].code, 'INVALID_ARGUMENTS')
held('every tool')

const abort = new AbortController()
const heard = []
const onprogress = (progress) => {
  heard.push(progress)
  abort.abort()
}
const long = call('execute_command', { command: 'echo begun; sleep 300' }, { signal: abort.signal, onprogress })
await assert.rejects(long)
assert.equal(heard[0].message, 'begun')
for (;;) {
  const { exit_code } = await call('execute_command', { command: 'pgrep -x sleep' })
  if (exit_code === 1) break
}
held('progress and cancellation of a command')

const stop = new AbortController()
const endless = call('run_code', { code: 'kept = 1\nwhile True: pass', timeout: 300 },
  { signal: stop.signal, onprogress: () => stop.abort() })
await assert.rejects(endless)
assert.equal((await call('run_code', { code: 'kept' })).results[0].text, '1')
held('cancellation of code')

const second = await connect()
const other = await second.callTool({ name: 'execute_command', arguments: { command: 'ls' } })
assert.equal(other.structuredContent.stdout, '')
assert.notEqual(other.structuredContent.sandbox_id, (await call('execute_command', { command: 'ls' })).sandbox_id)
held('two clients at once')

if (way === 'http') {
  const stranger = new Client({ name: 'stranger', version: '1.0.0' })
  await assert.rejects(stranger.connect(transport('e2b_' + '0'.repeat(40))))
  await client.transport.terminateSession()
  await second.transport.terminateSession()
  held('wrong key')
}
await client.close()
await second.close()
held('close')
