// Ports of a sandbox by name: HTTP, a stream of events, and a WebSocket.

import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

const SERVICE = `
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'

const server = createServer((request, response) => {
  if (request.url === '/events') {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write('data: first\\n\\n')
    request.on('close', () => process.exit())
    return
  }
  response.end(request.method + ' ' + request.url + ' for ' + request.headers.host)
})
server.on('upgrade', (request, socket) => {
  const key = request.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
  const accept = createHash('sha1').update(key).digest('base64')
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + accept + '\\r\\n\\r\\n')
  socket.on('data', (frame) => {
    const length = frame[1] & 127
    const mask = frame.subarray(2, 6)
    const text = Buffer.from(frame.subarray(6, 6 + length).map((byte, index) => byte ^ mask[index % 4]))
    socket.write(Buffer.concat([Buffer.from([0x81, length]), text]))
  })
})
server.listen(3000, '127.0.0.1')
`

const sandbox = await Sandbox.create({ timeoutMs: 120_000 })
await sandbox.files.write('service.mjs', SERVICE)
await sandbox.commands.run('node service.mjs', { background: true })
await sandbox.commands.run('until curl -s http://127.0.0.1:3000/; do sleep 0.1; done')
const host = sandbox.getHost(3000)

const answer = await fetch(`https://${host}/path?query`)
assert.equal(await answer.text(), `GET /path?query for ${host}`)
console.log('ok http')

const socket = new WebSocket(`wss://${host}/`)
await new Promise((done, failed) => {
  socket.onopen = done
  socket.onerror = failed
})
for (const text of ['one', 'two']) {
  const heard = new Promise((done) => (socket.onmessage = (event) => done(event.data)))
  socket.send(text)
  assert.equal(await heard, text)
}
socket.close()
console.log('ok websocket')

const events = await fetch(`https://${host}/events`)
const { value } = await events.body.getReader().read()
assert.equal(new TextDecoder().decode(value), 'data: first\n\n')
console.log('ok events')

await sandbox.kill()
const gone = await fetch(`https://${host}/`)
assert.equal(gone.status, 502)
assert.match((await gone.json()).message, /was not found/)
console.log('ok gone')
process.exit()
