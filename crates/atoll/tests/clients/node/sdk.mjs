// `sdk.mjs [NAME]`: all cases for E2B's JavaScript SDK.

import { Sandbox } from 'e2b'

import { commands } from './sdk/commands.mjs'
import { files } from './sdk/files.mjs'
import { links } from './sdk/links.mjs'
import { terminals } from './sdk/terminals.mjs'
import { watching } from './sdk/watching.mjs'
import { guest, HOME, run } from './suite.mjs'

/** A sandbox handle, and a place for the files of one case. */
function stand(name, token = guest.token) {
  const sandbox = new Sandbox({
    sandboxId: guest.sandboxId,
    sandboxUrl: guest.url,
    envdAccessToken: token,
    // The version a control plane would report for the guest; it opens every
    // gate of the SDK.
    envdVersion: '0.6.13',
  })
  return {
    sandbox,
    files: sandbox.files,
    commands: sandbox.commands,
    pty: sandbox.pty,
    directory: `${HOME}/${name}`,
    name,
    stranger: () => stand('stranger', 'not-the-token'),
    run: (command, options) => sandbox.commands.run(command, options),
    start: (command, options) => sandbox.commands.run(command, { ...options, background: true }),
    /** Standard output of a command that succeeds. */
    output: async (command, options) => (await sandbox.commands.run(command, options)).stdout,
    /** Whether a process with this in its command line runs in the sandbox. */
    runs: async (pattern) => {
      // The brackets keep `pgrep` from finding the shell it runs in.
      const found = await sandbox.commands.run(
        `pgrep -f '[${pattern[0]}]${pattern.slice(1)}' || true`,
      )
      return found.stdout !== ''
    },
  }
}

await run([commands, terminals, files, watching, links], process.argv[2] ?? '', stand)
