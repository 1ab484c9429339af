// Signed URLs: what a plain HTTP client does with them.

import assert from 'node:assert/strict'

import { guest, HOME, same } from '../suite.mjs'

function form(content, filename = 'ignored') {
  const body = new FormData()
  body.append('file', new Blob([content]), filename)
  return { method: 'POST', body }
}

async function refused(answer, message) {
  const { status, headers } = await answer
  same([status, await (await answer).json()], [401, { code: 401, message }])
  assert(headers.get('content-type').startsWith('application/json'))
}

const text = async (answer) => (await answer).text()

export const links = {
  async a_link_to_read({ files, sandbox, directory }) {
    const path = `${directory}/file.txt`
    await files.write(path, 'content')
    const answer = await fetch(await sandbox.downloadUrl(path))
    same([answer.status, await answer.text()], [200, 'content'])
    const disposition = answer.headers.get('content-disposition')
    assert(disposition.startsWith('inline') && disposition.includes('file.txt'), disposition)
  },

  async a_link_to_read_for_a_while({ files, sandbox, directory }) {
    const path = `${directory}/file`
    await files.write(path, 'content')
    const url = await sandbox.downloadUrl(path, { useSignatureExpiration: 120 })
    assert(url.includes('signature_expiration='), url)
    same(await text(fetch(url)), 'content')
  },

  async a_link_that_has_expired({ files, sandbox, directory }) {
    const path = `${directory}/file`
    await files.write(path, 'content')
    const expired = { useSignatureExpiration: -60 }
    await refused(fetch(await sandbox.downloadUrl(path, expired)), 'signature is already expired')
    await refused(
      fetch(await sandbox.uploadUrl(path, expired), form('x')),
      'signature is already expired',
    )
    same(await files.read(path), 'content')
  },

  async a_link_that_was_tampered_with({ files, sandbox, directory }) {
    const path = `${directory}/wanted`
    await files.write(path, 'content')
    const url = await sandbox.downloadUrl(path)
    for (const other of [
      url.replace('wanted', 'want'),
      `${url}&username=root`,
      `${url}&signature_expiration=4102444800`,
      url.replace('signature=v1_', 'signature=v1_A'),
      await sandbox.uploadUrl(path),
    ]) {
      await refused(fetch(other), 'invalid signature')
    }
    await refused(fetch(url, form('x')), 'invalid signature')
    await refused(fetch(`${guest.url}/files?path=${path}`), 'missing signature query parameter')
  },

  async links_to_write({ files, sandbox, directory, name }) {
    const path = `${directory}/sub/with a form`
    const answer = await fetch(await sandbox.uploadUrl(path), form('content'))
    same(
      [answer.status, await answer.json()],
      [200, [{ name: 'with a form', path, type: 'file' }]],
    )
    same(await files.read(path), 'content')
    const plain = await fetch(await sandbox.uploadUrl(path, { useSignatureExpiration: 120 }), {
      method: 'POST',
      headers: { 'content-type': 'application/octet-stream' },
      body: 'octets',
    })
    same(plain.status, 200)
    same(await files.read(path), 'octets')
    const anything = await fetch(await sandbox.uploadUrl(), form('any', `${name}/named/by form`))
    same(
      [anything.status, await anything.json()],
      [200, [{ name: 'by form', path: `${HOME}/${name}/named/by form`, type: 'file' }]],
    )
  },

  async a_link_for_another_user({ sandbox, name, output }) {
    const url = await sandbox.uploadUrl(name, { user: 'root' })
    assert(url.includes('username=root'), url)
    same((await fetch(url, form('of root'))).status, 200)
    same(await text(fetch(await sandbox.downloadUrl(name, { user: 'root' }))), 'of root')
    same(await output(`stat -c %U /root/${name}`, { user: 'root' }), 'root\n')
  },

  async links_with_names_of_all_kinds({ files, sandbox, directory }) {
    for (const name of ['with space', 'a+b%20c&d=e#f?g', '日本語 😀', 'semi;colon:and,comma']) {
      const path = `${directory}/${name}`
      same((await fetch(await sandbox.uploadUrl(path), form(name))).status, 200)
      same(await files.read(path), name)
      same(await text(fetch(await sandbox.downloadUrl(path))), name)
    }
  },

  async a_link_to_what_is_not_there({ sandbox, directory }) {
    for (const [path, status] of [
      [`${directory}/missing`, 404],
      ['/etc', 400],
    ]) {
      const answer = await fetch(await sandbox.downloadUrl(path))
      const { code, message } = await answer.json()
      same([answer.status, code, typeof message], [status, status, 'string'])
    }
  },

  async parts_of_a_file({ files, sandbox, directory }) {
    const path = `${directory}/file`
    await files.write(path, '0123456789')
    const answer = await fetch(await sandbox.downloadUrl(path), { headers: { range: 'bytes=2-4' } })
    same(
      [answer.status, answer.headers.get('content-range'), await answer.text()],
      [206, 'bytes 2-4/10', '234'],
    )
  },
}
