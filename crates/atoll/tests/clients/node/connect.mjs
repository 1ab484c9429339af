// `connect.mjs json|binary [NAME]`: every method of both services through
// Connect's own client, in one of its codecs.
//
// The messages come from the guest's `.proto` files as a descriptor set that
// the test writes, so nothing is generated beforehand.

import { readFileSync } from 'node:fs'

import { createFileRegistry, fromBinary } from '@bufbuild/protobuf'
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt'
import { createClient } from '@connectrpc/connect'
import { createConnectTransport } from '@connectrpc/connect-node'

import { filesystem } from './connect/filesystem.mjs'
import { process as processes } from './connect/process.mjs'
import { protocol } from './connect/protocol.mjs'
import { guest, HOME, run } from './suite.mjs'

const [codec, wanted = ''] = process.argv.slice(2)
if (!['json', 'binary'].includes(codec)) throw new Error('which codec, `json` or `binary`?')
const descriptors = fromBinary(
  FileDescriptorSetSchema,
  readFileSync(process.env.GUEST_DESCRIPTORS),
)
const registry = createFileRegistry(descriptors)

/** Both services, and a place for the files of one case. */
function stand(name) {
  const transport = (token) =>
    createConnectTransport({
      baseUrl: guest.url,
      httpVersion: '1.1',
      useBinaryFormat: codec === 'binary',
      interceptors: [
        (next) => (request) => {
          if (token !== undefined) request.header.set('x-access-token', token)
          return next(request)
        },
      ],
    })
  const services = (token) => ({
    process: createClient(registry.getService('process.Process'), transport(token)),
    filesystem: createClient(registry.getService('filesystem.Filesystem'), transport(token)),
  })
  return {
    ...services(guest.token),
    services,
    registry,
    codec,
    name,
    directory: `${HOME}/${name}`,
  }
}

// Plain requests are JSON whatever the codec.
const groups = codec === 'json' ? [protocol] : []
await run([processes, filesystem, ...groups], wanted, stand)
