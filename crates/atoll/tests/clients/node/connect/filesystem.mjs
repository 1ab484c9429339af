// `filesystem.Filesystem`.

import assert from 'node:assert/strict'

import { Code } from '@connectrpc/connect'

import { eventually, HOME, same, within } from '../suite.mjs'
import { as, output, refused, run } from './calls.mjs'

const FILE = 1
const DIRECTORY = 2
const UNSPECIFIED = 0

const KINDS = ['unspecified', 'create', 'write', 'remove', 'rename', 'chmod']

/** All fields of an entry but its time, as a plain object. */
function plain({ $typeName, modifiedTime, size, metadata, ...entry }) {
  same($typeName, 'filesystem.EntryInfo')
  const age = Date.now() / 1000 - Number(modifiedTime.seconds)
  assert(age > -60 && age < 10 * 365 * 86_400, `${modifiedTime.seconds}`)
  return {
    ...entry,
    size: entry.type === DIRECTORY && !entry.isSymlink ? 0 : Number(size),
    metadata: { ...metadata },
  }
}

function entry(path, type = FILE, size = 0, other = {}) {
  return {
    name: path.split('/').pop(),
    type,
    path,
    size,
    mode: type === DIRECTORY ? 0o755 : 0o644,
    permissions: type === DIRECTORY ? 'drwxr-xr-x' : '-rw-r--r--',
    owner: 'user',
    group: 'user',
    metadata: {},
    isSymlink: false,
    ...other,
  }
}

const told = (events) => events.map(({ name, type }) => `${KINDS[type]} ${name}`)

export const filesystem = {
  async stat_knows_files_and_directories(stand) {
    const { filesystem, directory } = stand
    await output(stand, `mkdir ${directory}; echo 1234 > ${directory}/file`)
    const stat = async (path) => plain((await filesystem.stat({ path })).entry)
    same(await stat(`${directory}/file`), entry(`${directory}/file`, FILE, 5))
    same(await stat(directory), entry(directory, DIRECTORY))
    same((await stat('~')).path, HOME)
    same((await stat('')).path, HOME)
    same((await stat(`${stand.name}/./file`)).path, `${directory}/file`)
    same((await filesystem.stat({ path: '~' }, as('root'))).entry.path, '/root')
  },

  async stat_tells_the_time_to_the_nanosecond(stand) {
    const path = `${stand.directory}/file`
    await output(stand, `mkdir ${stand.directory}; touch -d 2020-02-03T04:05:06.123456789Z ${path}`)
    const { modifiedTime } = (await stand.filesystem.stat({ path })).entry
    same([modifiedTime.seconds, modifiedTime.nanos], [1_580_702_706n, 123_456_789])
  },

  async stat_knows_links(stand) {
    const { filesystem, directory } = stand
    await output(
      stand,
      `mkdir -p ${directory}/target; cd ${directory}; echo 1234 > target/file; chmod 600 target/file;` +
        ' ln -s target/file file; ln -s target directory; ln -s nowhere broken; ln -s self self',
    )
    const link = { permissions: 'Lrwxrwxrwx', isSymlink: true }
    const stat = async (name) => plain((await filesystem.stat({ path: `${directory}/${name}` })).entry)
    same(
      await stat('file'),
      entry(`${directory}/file`, FILE, 11, {
        ...link,
        mode: 0o600,
        symlinkTarget: `${directory}/target/file`,
      }),
    )
    same(
      await stat('directory'),
      entry(`${directory}/directory`, DIRECTORY, 6, {
        ...link,
        mode: 0o755,
        symlinkTarget: `${directory}/target`,
      }),
    )
    for (const name of ['broken', 'self']) {
      const { type, isSymlink } = await stat(name)
      same([name, type, isSymlink], [name, UNSPECIFIED, true])
    }
  },

  async stat_knows_what_is_no_file(stand) {
    const path = `${stand.directory}/pipe`
    await output(stand, `mkdir ${stand.directory}; mkfifo ${path}`)
    const pipe = plain((await within(stand.filesystem.stat({ path }), 'an answer')).entry)
    same([pipe.type, pipe.permissions], [UNSPECIFIED, 'prw-r--r--'])
    const device = (await stand.filesystem.stat({ path: '/dev/null' })).entry
    same([device.type, device.permissions[0]], [UNSPECIFIED, 'D'])
  },

  async stat_refuses(stand) {
    const stat = (path, options) => () => stand.filesystem.stat({ path }, options)
    const missing = `${stand.directory}/missing`
    await refused(Code.NotFound, `file not found: ${missing}`, stat(missing))
    await refused(Code.NotFound, `file not found: ${HOME}/q`, stat('q'))
    await refused(Code.InvalidArgument, /~root/, stat('~root'))
    await refused(Code.Unauthenticated, "invalid username: 'nobody-here'", stat('x', as('nobody-here')))
  },

  async make_dir_makes_all_of_a_path(stand) {
    const path = `${stand.directory}/a/b`
    same(plain((await stand.filesystem.makeDir({ path })).entry), entry(path, DIRECTORY))
    same(await output(stand, `stat -c '%U %a' ${stand.directory}/a`), 'user 755\n')
    const { entry: made } = await stand.filesystem.makeDir({ path: 'made_as_root' }, as('root'))
    same([made.path, made.owner], ['/root/made_as_root', 'root'])
  },

  async make_dir_refuses(stand) {
    const make = (path, options) => () => stand.filesystem.makeDir({ path }, options)
    const { directory } = stand
    await output(stand, `mkdir ${directory}; touch ${directory}/file`)
    await refused(Code.AlreadyExists, new RegExp(directory), make(directory))
    await refused(Code.InvalidArgument, new RegExp(directory), make(`${directory}/file`))
    await refused(Code.InvalidArgument, new RegExp(directory), make(`${directory}/file/below`))
    await refused(Code.InvalidArgument, /~root/, make('~root/x'))
    await refused(Code.Unauthenticated, "invalid username: 'nobody-here'", make('x', as('nobody-here')))
  },

  async move_gives_another_name(stand) {
    const [source, destination] = [`${stand.directory}/old`, `${stand.directory}/a/b/new`]
    await output(stand, `mkdir ${stand.directory}; echo 1234 > ${source}`)
    const { entry: moved } = await stand.filesystem.move({ source, destination })
    same(plain(moved), entry(destination, FILE, 5))
    same(await output(stand, `ls ${stand.directory}; cat ${destination}`), 'a\n1234\n')
  },

  async move_refuses(stand) {
    const source = `${stand.directory}/missing`
    const move = (source, destination, options) => () =>
      stand.filesystem.move({ source, destination }, options)
    await refused(Code.NotFound, /missing/, move(source, `${stand.directory}/x`))
    await refused(Code.InvalidArgument, /~root/, move('~root/x', 'y'))
    await refused(
      Code.Unauthenticated,
      "invalid username: 'nobody-here'",
      move('x', 'y', as('nobody-here')),
    )
  },

  async list_dir_goes_as_deep_as_asked(stand) {
    const { filesystem, directory } = stand
    await output(
      stand,
      `mkdir -p ${directory}/b/d; cd ${directory}; echo 1 > a; echo 1 > b/c; echo 1 > b/d/e; ln -s b link; ln -s no broken`,
    )
    const names = async (depth) => {
      const { entries } = await filesystem.listDir({ path: directory, depth })
      return entries.map(({ path }) => path.slice(directory.length + 1))
    }
    const one = ['a', 'b', 'broken', 'link']
    same(await names(0), one)
    same(await names(1), one)
    same(await names(2), ['a', 'b', 'b/c', 'b/d', 'broken', 'link'])
    same(await names(3), ['a', 'b', 'b/c', 'b/d', 'b/d/e', 'broken', 'link'])
    same(await names(4_294_967_295), await names(3))
    const { entries } = await filesystem.listDir({ path: directory })
    same(entries.map(plain).slice(0, 2), [
      entry(`${directory}/a`, FILE, 2),
      entry(`${directory}/b`, DIRECTORY),
    ])
    same([entries[2].type, entries[2].isSymlink], [UNSPECIFIED, true])
    const through = await filesystem.listDir({ path: `${directory}/link` })
    same(
      through.entries.map(({ path }) => path),
      [`${directory}/link/c`, `${directory}/link/d`],
    )
  },

  async list_dir_refuses(stand) {
    const list = (path, options) => () => stand.filesystem.listDir({ path }, options)
    await output(stand, `mkdir ${stand.directory}; touch ${stand.directory}/file`)
    await refused(Code.NotFound, /missing/, list(`${stand.directory}/missing`))
    await refused(Code.InvalidArgument, /file/, list(`${stand.directory}/file`))
    await refused(Code.InvalidArgument, /~root/, list('~root'))
    await refused(Code.Unauthenticated, "invalid username: 'nobody-here'", list('', as('nobody-here')))
  },

  async remove_takes_everything_and_does_not_mind(stand) {
    const { filesystem, directory } = stand
    await output(stand, `mkdir -p ${directory}/full/of; touch ${directory}/full/of/files ${directory}/kept`)
    await filesystem.remove({ path: `${directory}/full` })
    await filesystem.remove({ path: `${directory}/full` })
    same(await output(stand, `ls ${directory}`), 'kept\n')
    await refused(Code.InvalidArgument, /~root/, () => filesystem.remove({ path: '~root/x' }))
    await refused(Code.Unauthenticated, "invalid username: 'nobody-here'", () =>
      filesystem.remove({ path: 'x' }, as('nobody-here')),
    )
  },

  async watch_dir_tells_of_changes(stand) {
    const { filesystem, directory } = stand
    await output(stand, `mkdir -p ${directory}/sub`)
    const stop = new AbortController()
    const stream = filesystem
      .watchDir(
        { path: directory, recursive: true, includeEntry: true },
        { signal: stop.signal, headers: { 'keepalive-ping-interval': '1' } },
      )
      [Symbol.asyncIterator]()
    const next = async () => (await within(stream.next(), 'an event')).value.event
    same((await next()).case, 'start')
    same((await next()).case, 'keepalive')
    await output(stand, `cd ${directory}; echo 12 > sub/file; chmod 600 sub/file; mv sub/file sub/moved; rm sub/moved`)
    const events = []
    while (events.at(-1)?.type !== 3) {
      const event = await next()
      if (event.case === 'filesystem') events.push(event.value)
      else same(event.case, 'keepalive')
    }
    const seen = told(events).filter((event) => !event.endsWith(' sub'))
    same([...seen].sort(), [
      'chmod sub/file',
      'create sub/file',
      'create sub/moved',
      'remove sub/moved',
      'rename sub/file',
      'write sub/file',
    ])
    for (const { name, type, entry } of events) {
      if (entry) same([name, entry.path], [name, `${directory}/${name}`])
      if (KINDS[type] === 'remove' || KINDS[type] === 'rename') same(entry, undefined)
    }
    stop.abort()
    await refused(Code.Canceled, undefined, next)
  },

  async watch_dir_has_a_deadline(stand) {
    await output(stand, `mkdir ${stand.directory}`)
    const stream = stand.filesystem.watchDir({ path: stand.directory }, { timeoutMs: 700 })
    await refused(Code.DeadlineExceeded, undefined, async () => {
      for await (const { event } of stream) same(event.case, 'start')
    })
  },

  async watch_dir_refuses(stand) {
    const watch = (path, options) => async () => {
      for await (const message of stand.filesystem.watchDir({ path }, options)) return message
    }
    await output(stand, `mkdir ${stand.directory}; touch ${stand.directory}/file`)
    await refused(Code.NotFound, /missing/, watch(`${stand.directory}/missing`))
    await refused(Code.InvalidArgument, /file/, watch(`${stand.directory}/file`))
    await refused(Code.InvalidArgument, /~root/, watch('~root'))
    await refused(Code.Unauthenticated, "invalid username: 'nobody-here'", watch('', as('nobody-here')))
  },

  async watchers_are_asked(stand) {
    const { filesystem, directory } = stand
    await output(stand, `mkdir ${directory}`)
    const { watcherId } = await filesystem.createWatcher({ path: directory, includeEntry: true })
    assert(watcherId.length > 0)
    same((await filesystem.getWatcherEvents({ watcherId })).events, [])
    await output(stand, `echo 12 > ${directory}/file`)
    const events = []
    await eventually('the write', async () => {
      events.push(...(await filesystem.getWatcherEvents({ watcherId })).events)
      return events.some(({ type }) => KINDS[type] === 'write')
    })
    same(told(events), ['create file', 'write file'])
    same(events[1].entry.path, `${directory}/file`)
    // They are handed over once.
    same((await filesystem.getWatcherEvents({ watcherId })).events, [])
    await filesystem.removeWatcher({ watcherId })
    await refused(Code.NotFound, /./, () => filesystem.getWatcherEvents({ watcherId }))
    await refused(Code.NotFound, /./, () => filesystem.removeWatcher({ watcherId }))
  },

  async watchers_refuse(stand) {
    const create = (path, options) => () => stand.filesystem.createWatcher({ path }, options)
    await output(stand, `mkdir ${stand.directory}; touch ${stand.directory}/file`)
    await refused(Code.NotFound, /missing/, create(`${stand.directory}/missing`))
    await refused(Code.InvalidArgument, /file/, create(`${stand.directory}/file`))
    await refused(Code.InvalidArgument, /~root/, create('~root'))
    await refused(Code.Unauthenticated, "invalid username: 'nobody-here'", create('', as('nobody-here')))
    const watcherId = 'no-such-watcher'
    await refused(Code.NotFound, /./, () => stand.filesystem.getWatcherEvents({ watcherId }))
    await refused(Code.NotFound, /./, () => stand.filesystem.removeWatcher({ watcherId }))
  },

  async a_watch_that_is_left_is_forgotten(stand) {
    const { filesystem, directory } = stand
    await output(stand, `mkdir ${directory}`)
    for (let count = 0; count < 150; count++) {
      const stop = new AbortController()
      const stream = filesystem.watchDir({ path: directory }, { signal: stop.signal })
      for await (const { event } of stream) {
        same(event.case, 'start')
        break
      }
      stop.abort()
    }
    // More than the kernel gives one user at a time (`max_user_instances`).
    same((await run(stand, 'true')).end.exitCode, 0)
  },
}
