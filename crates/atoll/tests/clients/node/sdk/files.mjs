// Files: content in and out, and what is known about them.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'

import { AuthenticationError, FileNotFoundError, FileType, InvalidArgumentError } from 'e2b'

import { HOME, raised, same } from '../suite.mjs'

// More than any buffer on the way, and nothing that compresses away.
const BLOCK = Buffer.concat(
  Array.from({ length: 256 }, (_, n) => createHash('sha256').update(`${n}`).digest()),
)
const MUCH = new Uint8Array(Buffer.concat(Array.from({ length: 384 }, () => BLOCK)))

const arrayBuffer = (bytes) => new Uint8Array(bytes).buffer

function written(path, metadata) {
  return { name: path.split('/').pop(), path, type: 'file', metadata }
}

/** An entry as a new one of the default user looks. */
function entry(path, type = FileType.FILE, size = 0, other = {}) {
  const isDirectory = type === FileType.DIR
  return {
    name: path.split('/').pop(),
    type,
    path,
    size,
    mode: isDirectory ? 0o755 : 0o644,
    permissions: isDirectory ? 'drwxr-xr-x' : '-rw-r--r--',
    owner: 'user',
    group: 'user',
    symlinkTarget: undefined,
    metadata: undefined,
    ...other,
  }
}

/** All fields but those that are not known before; these only make sense. */
function seen({ modifiedTime, ...info }) {
  assert(modifiedTime instanceof Date)
  const age = Date.now() - modifiedTime.getTime()
  assert(age > -60_000 && age < 10 * 365 * 86_400_000, `${modifiedTime}`)
  return info.type === FileType.DIR ? { ...info, size: 0 } : info
}

async function all(stream) {
  const pieces = []
  for await (const piece of stream) pieces.push(piece)
  return new Uint8Array(Buffer.concat(pieces))
}

export const files = {
  async a_text_is_written_and_read({ files, directory, output }) {
    const path = `${directory}/a.txt`
    same(await files.write(path, 'first\nsecond €😀\n'), written(path))
    same(await files.read(path), 'first\nsecond €😀\n')
    same(await output(`cat ${path}`), 'first\nsecond €😀\n')
  },

  async all_bytes_come_back({ files, directory }) {
    const path = `${directory}/bytes`
    const content = Uint8Array.from({ length: 1280 }, (_, n) => n % 256)
    await files.write(path, content.buffer)
    same(await files.read(path, { format: 'bytes' }), content)
    const blob = await files.read(path, { format: 'blob' })
    same(new Uint8Array(await blob.arrayBuffer()), content)
    await files.write(path, new Blob([content]))
    same(await files.read(path, { format: 'bytes' }), content)
  },

  async an_empty_file({ files, directory }) {
    const path = `${directory}/empty`
    same(await files.write(path, ''), written(path))
    same(await files.read(path), '')
    same(await files.read(path, { format: 'bytes' }), new Uint8Array(0))
    same(await all(await files.read(path, { format: 'stream' })), new Uint8Array(0))
    same((await files.getInfo(path)).size, 0)
  },

  async a_large_file({ files, directory, output }) {
    const path = `${directory}/large`
    await files.write(path, MUCH.buffer)
    assert(Buffer.compare(await files.read(path, { format: 'bytes' }), MUCH) === 0)
    const digest = createHash('sha256').update(MUCH).digest('hex')
    same(await output(`sha256sum < ${path}`), `${digest}  -\n`)
  },

  async files_are_streamed_both_ways({ files, directory }) {
    const path = `${directory}/streamed`
    let sent = 0
    const source = new ReadableStream({
      pull(controller) {
        if (sent === MUCH.length) return controller.close()
        controller.enqueue(MUCH.subarray(sent, (sent += BLOCK.length)))
      },
    })
    same(await files.write(path, source), written(path))
    const back = await all(await files.read(path, { format: 'stream' }))
    assert(Buffer.compare(back, MUCH) === 0, `${back.length}`)
  },

  async a_stream_that_is_not_read_to_its_end({ files, directory }) {
    const path = `${directory}/large`
    await files.write(path, MUCH.buffer)
    for (let count = 0; count < 12; count++) {
      const stream = await files.read(path, { format: 'stream' })
      const reader = stream.getReader()
      await reader.read()
      await reader.cancel()
    }
    same((await files.read(path, { format: 'bytes' })).length, MUCH.length)
  },

  async an_upload_without_a_form({ files, directory }) {
    const path = `${directory}/octets`
    same(await files.write(path, 'octets', { useOctetStream: true }), written(path))
    same(await files.read(path), 'octets')
  },

  async several_files_at_once({ files, directory }) {
    const paths = ['1', 'sub/2', 'sub/deep/er/3'].map((name) => `${directory}/${name}`)
    same(
      await files.write(paths.map((path) => ({ path, data: path }))),
      paths.map((path) => written(path)),
    )
    for (const path of paths) same(await files.read(path), path)
    same(await files.write([]), [])
  },

  async several_files_with_relative_paths({ files }) {
    const infos = await files.writeFiles([
      { path: 'relative_files/x/1', data: '1' },
      { path: '~/relative_files/2', data: '2' },
    ])
    same(
      infos.map(({ path }) => path),
      [`${HOME}/relative_files/x/1`, `${HOME}/relative_files/2`],
    )
  },

  async one_file_twice_at_once({ files, directory }) {
    const file = { path: `${directory}/same`, data: 'a' }
    await raised(InvalidArgumentError, () => files.write([file, file]))
  },

  async names_of_all_kinds({ files, directory }) {
    const names = [
      'héllo wörld.txt',
      '日本語/ファイル',
      'emoji 😀',
      'a+b%20c&d=e#f?g',
      "quote's",
      'semi;colon,comma',
      '-dash',
    ]
    for (const name of names) {
      const path = `${directory}/${name}`
      same((await files.write(path, name)).path, path)
      same(await files.read(path), name)
      same((await files.getInfo(path)).path, path)
    }
    same(
      new Set((await files.list(directory)).map(({ name }) => name)),
      new Set(names.map((name) => name.split('/')[0])),
    )
    const paths = names.map((name) => `${directory}/at once/${name}`)
    const infos = await files.write(paths.map((path) => ({ path, data: path })))
    same(
      infos.map(({ path }) => path),
      paths,
    )
  },

  async a_file_is_replaced({ files, directory, run, output }) {
    const path = `${directory}/replaced`
    await files.write(path, 'a long first text')
    await run(`chmod 600 ${path}`)
    await files.write(path, 'short')
    same(await files.read(path), 'short')
    same(await output(`stat -c %a ${path}`), '600\n')
  },

  async directories_are_made_for_a_file({ files, directory }) {
    const path = `${directory}/a/b/file`
    await files.write(path, 'x')
    same((await files.list(directory, { depth: 3 })).map(seen), [
      entry(`${directory}/a`, FileType.DIR),
      entry(`${directory}/a/b`, FileType.DIR),
      entry(path, FileType.FILE, 1),
    ])
  },

  async what_cannot_be_read({ files, directory }) {
    for (const format of ['text', 'bytes', 'stream', 'blob']) {
      await raised(FileNotFoundError, () => files.read(`${directory}/missing`, { format }))
      await raised(InvalidArgumentError, () => files.read('/etc', { format }))
    }
  },

  async what_cannot_be_written({ files, directory }) {
    await files.write(`${directory}/file`, 'x')
    for (const path of [directory, `${directory}/file/below`]) {
      for (const useOctetStream of [false, true]) {
        await raised(InvalidArgumentError, () => files.write(path, 'x', { useOctetStream }))
      }
    }
  },

  async files_without_a_size({ files, output }) {
    const path = '/proc/sys/kernel/random/boot_id'
    same(await files.read(path), await output(`cat ${path}`))
  },

  async data_beside_a_file({ files, directory }) {
    const path = `${directory}/with-data`
    const metadata = { author: 'somebody', 'x-y_z.1': 'a b;c=d' }
    same(
      await files.write(path, 'x', { metadata: { Author: 'somebody', 'x-y_z.1': 'a b;c=d' } }),
      written(path, metadata),
    )
    same((await files.getInfo(path)).metadata, metadata)
    same((await files.list(directory))[0].metadata, metadata)
    same((await files.rename(path, `${path}-moved`)).metadata, metadata)
  },

  async data_beside_a_file_is_replaced_as_a_whole({ files, directory }) {
    const path = `${directory}/with-data`
    await files.write(path, 'x', { metadata: { a: '1', b: '2' } })
    await files.write(path, 'x', { metadata: { b: '3' }, useOctetStream: true })
    same((await files.getInfo(path)).metadata, { b: '3' })
    same((await files.write(path, 'x')).metadata, undefined)
    same((await files.getInfo(path)).metadata, undefined)
  },

  async too_much_data_beside_a_file({ files, directory }) {
    const path = `${directory}/with-data`
    for (const metadata of [{ k: 'v'.repeat(4097) }, { ['k'.repeat(247)]: 'v' }]) {
      await raised(InvalidArgumentError, () => files.write(path, 'x', { metadata }))
    }
  },

  async compressed_both_ways({ files, directory }) {
    const path = `${directory}/compressed`
    const content = 'compress me '.repeat(50_000)
    same(await files.write(path, content, { gzip: true }), written(path))
    same((await files.getInfo(path)).size, content.length)
    same(await files.read(path, { gzip: true }), content)
    same(
      Buffer.from(await all(await files.read(path, { gzip: true, format: 'stream' }))).toString(),
      content,
    )
  },

  async a_compressed_file_stays_compressed({ files, directory }) {
    const path = `${directory}/file.gz`
    const content = new Uint8Array(gzipSync('text'))
    await files.write(path, arrayBuffer(content))
    for (const gzip of [false, true]) {
      same(await files.read(path, { format: 'bytes', gzip }), content)
    }
  },

  async what_exists({ files, directory }) {
    const path = `${directory}/there`
    same(await files.exists(path), false)
    await files.write(path, 'x')
    same(await files.exists(path), true)
    same(await files.exists(directory), true)
  },

  async what_a_file_is({ files, directory, run }) {
    const path = `${directory}/file`
    await files.write(path, '12345')
    same(seen(await files.getInfo(path)), entry(path, FileType.FILE, 5))
    await run(`chmod 751 ${path}; touch -d 2020-02-03T04:05:06.789Z ${path}; sudo chown root:daemon ${path}`)
    same(await files.getInfo(path), {
      ...entry(path, FileType.FILE, 5),
      mode: 0o751,
      permissions: '-rwxr-x--x',
      owner: 'root',
      group: 'daemon',
      modifiedTime: new Date('2020-02-03T04:05:06.789Z'),
    })
  },

  async what_a_directory_is({ files, directory }) {
    await files.makeDir(directory)
    same(seen(await files.getInfo(directory)), entry(directory, FileType.DIR))
  },

  async what_a_link_is({ files, directory, run }) {
    await files.write(`${directory}/target/file`, '12345')
    await run('chmod 640 target/file; ln -s target/file file; ln -s target directory; ln -s no broken', {
      cwd: directory,
    })
    const path = `${directory}/file`
    // This SDK knows only what a link leads to.
    same(
      seen(await files.getInfo(path)),
      entry(path, FileType.FILE, 11, {
        mode: 0o640,
        permissions: 'Lrwxrwxrwx',
        symlinkTarget: `${directory}/target/file`,
      }),
    )
    const listed = await files.list(directory)
    same(
      listed.map(({ name, type, symlinkTarget }) => [name, type, symlinkTarget]),
      [
        ['directory', 'dir', `${directory}/target`],
        ['file', 'file', `${directory}/target/file`],
        ['target', 'dir', undefined],
      ],
    )
  },

  async what_is_not_there({ files, directory }) {
    const path = `${directory}/missing`
    const error = await raised(FileNotFoundError, () => files.getInfo(path))
    same(error.message, `[not_found] file not found: ${path}`)
    await raised(FileNotFoundError, () => files.list(path))
    await raised(FileNotFoundError, () => files.rename(path, `${path}-2`))
    await files.remove(path)
  },

  async a_directory_is_listed({ files, directory, run }) {
    await run(
      `mkdir -p ${directory}/b/d; cd ${directory}; echo 1 > a; echo 1 > b/c; echo 1 > b/d/e; echo 1 > g`,
    )
    const names = async (depth) =>
      (await files.list(directory, { depth })).map(({ path }) => path.slice(directory.length + 1))
    same(await names(undefined), ['a', 'b', 'g'])
    same(await names(2), ['a', 'b', 'b/c', 'b/d', 'g'])
    same(await names(3), ['a', 'b', 'b/c', 'b/d', 'b/d/e', 'g'])
    await raised(InvalidArgumentError, () => files.list(directory, { depth: 0 }))
    await raised(InvalidArgumentError, () => files.list(`${directory}/a`))
  },

  async a_directory_is_made({ files, directory }) {
    same(await files.makeDir(`${directory}/a/b`), true)
    same(await files.makeDir(`${directory}/a/b`), false)
    await files.write(`${directory}/file`, 'x')
    await raised(InvalidArgumentError, () => files.makeDir(`${directory}/file`))
  },

  async files_get_other_names({ files, directory }) {
    const [old, path] = [`${directory}/old`, `${directory}/made/for/it/new`]
    await files.write(old, '12345')
    same(seen(await files.rename(old, path)), entry(path, FileType.FILE, 5))
    same(await files.exists(old), false)
    same(await files.read(path), '12345')
  },

  async files_and_directories_are_removed({ files, directory }) {
    await files.write(`${directory}/full/of/files`, 'x')
    same(await files.remove(`${directory}/full`), undefined)
    same(await files.exists(`${directory}/full`), false)
    await files.remove(`${directory}/full`)
  },

  async places_that_belong_to_root({ files, name, output }) {
    const path = `/srv/${name}/sub/file`
    await files.write(path, 'x')
    same(
      await output(`stat -c '%U:%G %a' /srv/${name}/sub ${path}`),
      'user:user 755\nuser:user 644\n',
    )
    await files.remove(`/srv/${name}`)
    same(await files.exists(`/srv/${name}`), false)
  },

  async a_file_of_another_user({ files, name }) {
    await files.write(name, 'x', { user: 'root' })
    same(await files.read(`/root/${name}`), 'x')
    same(await files.exists(name), false)
    const info = await files.getInfo(name, { user: 'root' })
    same([info.path, info.owner, info.group], [`/root/${name}`, 'root', 'root'])
  },

  async paths_and_what_they_mean({ files, name, directory }) {
    for (const path of [`${name}/1`, `~/${name}/1`, `./${name}//x/../1`, `${directory}/1`]) {
      same((await files.write(path, path)).path, `${directory}/1`)
      same((await files.getInfo(path)).path, `${directory}/1`)
    }
    for (const path of ['~', '']) {
      const listed = (await files.list(path)).map((info) => info.path)
      assert(listed.includes(directory), `${path}: ${listed}`)
    }
    await raised(InvalidArgumentError, () => files.read('~root/x'))
    await raised(InvalidArgumentError, () => files.list('~root'))
  },

  async users_that_are_missing({ files }) {
    const user = 'nobody-here'
    for (const call of [
      () => files.read('x', { user }),
      () => files.write('x', 'x', { user }),
      () => files.getInfo('x', { user }),
      () => files.list('', { user }),
      () => files.makeDir('x', { user }),
      () => files.rename('x', 'y', { user }),
      () => files.remove('x', { user }),
    ]) {
      const error = await raised(AuthenticationError, call)
      assert(error.message.endsWith("invalid username: 'nobody-here'"), error.message)
    }
  },
}
