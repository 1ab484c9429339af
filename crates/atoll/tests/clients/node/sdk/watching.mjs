// Watched directories.

import assert from 'node:assert/strict'

import { FileNotFoundError, InvalidArgumentError, TimeoutError } from 'e2b'

import { eventually, raised, same, within } from '../suite.mjs'

const MARKER = 'the-end-of-the-case'

/** A watched directory, and what was seen so far. */
class Watch {
  events = []

  static async open({ files, run, directory }, options, path = directory) {
    const self = new Watch()
    self.mark = () => run(`mkdir ${path}/${MARKER}`, { user: 'root' })
    self.handle = await files.watchDir(path, (event) => void self.events.push(event), options)
    return self
  }

  /** Everything up to now: a directory of our own marks the place. */
  async seen() {
    await this.mark()
    const marker = () => this.events.findIndex(({ name }) => name === MARKER)
    await eventually('the marker', () => marker() >= 0)
    await this.handle.stop()
    return this.events.slice(0, marker())
  }

  async told() {
    return (await this.seen()).map(({ name, type }) => `${type} ${name}`)
  }
}

async function watched(stand, options) {
  await stand.files.makeDir(stand.directory)
  return Watch.open(stand, options)
}

export const watching = {
  async a_new_file_makes_three_events(stand) {
    const watch = await watched(stand)
    await stand.files.write(`${stand.directory}/new`, 'content')
    same(await watch.told(), ['create new', 'chmod new', 'write new'])
  },

  async a_new_file_without_a_form_makes_three_events(stand) {
    const watch = await watched(stand)
    await stand.files.write(`${stand.directory}/new`, 'content', { useOctetStream: true })
    same(await watch.told(), ['create new', 'chmod new', 'write new'])
  },

  async files_of_programs(stand) {
    const watch = await watched(stand)
    await stand.run('echo x > made; chmod 600 made', { cwd: stand.directory })
    same(await watch.told(), ['create made', 'write made', 'chmod made'])
  },

  async another_name(stand) {
    await stand.files.write(`${stand.directory}/old`, 'x')
    const watch = await Watch.open(stand)
    await stand.files.rename(`${stand.directory}/old`, `${stand.directory}/new`)
    same((await watch.told()).sort(), ['create new', 'rename old'])
  },

  async a_file_is_gone(stand) {
    await stand.files.write(`${stand.directory}/file`, 'x')
    const watch = await Watch.open(stand)
    await stand.files.remove(`${stand.directory}/file`)
    same(await watch.told(), ['remove file'])
  },

  async what_is_deeper_is_not_seen(stand) {
    await stand.files.makeDir(`${stand.directory}/sub`)
    const watch = await Watch.open(stand)
    await stand.run('touch sub/file', { cwd: stand.directory })
    const told = await watch.told()
    assert(!told.some((event) => event.includes('file')), `${told}`)
  },

  async what_is_deeper_is_seen_when_asked_for(stand) {
    await stand.files.makeDir(`${stand.directory}/sub/deep`)
    const watch = await Watch.open(stand, { recursive: true })
    await stand.files.write(`${stand.directory}/sub/deep/file`, 'x')
    const told = await watch.told()
    same(
      told.filter((event) => event.endsWith('file')),
      ['create sub/deep/file', 'chmod sub/deep/file', 'write sub/deep/file'],
    )
  },

  async directories_made_later_are_watched(stand) {
    const watch = await watched(stand, { recursive: true })
    await stand.files.makeDir(`${stand.directory}/later`)
    await stand.files.makeDir(`${stand.directory}/later/deeper`)
    await stand.files.write(`${stand.directory}/later/deeper/file`, 'x')
    const told = await watch.told()
    for (const expected of [
      'create later',
      'create later/deeper',
      'create later/deeper/file',
      'write later/deeper/file',
    ]) {
      assert(told.includes(expected), `${expected}: ${told}`)
    }
  },

  async events_with_what_the_path_is(stand) {
    const watch = await watched(stand, { includeEntry: true })
    await stand.files.write(`${stand.directory}/file`, '12345')
    await eventually('the write', () => watch.events.some(({ type }) => type === 'write'))
    await stand.files.remove(`${stand.directory}/file`)
    const events = await watch.seen()
    same(
      events.map(({ type }) => type),
      ['create', 'chmod', 'write', 'remove'],
    )
    for (const { entry } of events.slice(0, 3)) {
      same(
        [entry.name, entry.path, entry.type, entry.permissions, entry.owner],
        ['file', `${stand.directory}/file`, 'file', '-rw-r--r--', 'user'],
      )
    }
    same(events[2].entry.size, 5)
    same(events[3].entry, undefined)
  },

  async events_without_what_the_path_is(stand) {
    const watch = await watched(stand)
    await stand.files.write(`${stand.directory}/file`, 'x')
    same(
      (await watch.seen()).map(({ entry }) => entry),
      [undefined, undefined, undefined],
    )
  },

  async what_cannot_be_watched(stand) {
    await raised(FileNotFoundError, () => Watch.open(stand))
    await stand.files.write(`${stand.directory}/file`, 'x')
    await raised(InvalidArgumentError, () =>
      Watch.open(stand, {}, `${stand.directory}/file`),
    )
  },

  async network_mounts_may_be_allowed(stand) {
    const watch = await watched(stand, { allowNetworkMounts: true })
    await stand.run('touch file', { cwd: stand.directory })
    assert((await watch.told()).includes('create file'))
  },

  async a_watch_beyond_its_time(stand) {
    let ended
    const end = new Promise((resolve) => (ended = resolve))
    await watched(stand, { timeoutMs: 1000, onExit: ended })
    const error = await within(end, 'the end of the watch')
    assert(error instanceof TimeoutError, `${error}`)
  },
}
