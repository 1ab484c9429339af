"""Signed URLs: what a plain HTTP client does with them."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request

from e2b.sandbox.signature import get_signature

from suite import HOME, ROUTE, TOKEN, URL, case, same, settle


def fetch(url, data=None, headers=None):
    """Status, headers and body, as a client without any SDK gets them."""
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def refused(answer, message):
    status, headers, body = answer
    same((status, json.loads(body)), (401, {"code": 401, "message": message}))
    same(headers.get_content_type(), "application/json")


def form(content, filename="ignored"):
    """A form with one file, as browsers send it."""
    body = (
        b"--frontier\r\n"
        + f'Content-Disposition: form-data; name="file"; filename="{filename}"\r\n'.encode()
        + b"Content-Type: application/octet-stream\r\n\r\n"
        + content
        + b"\r\n--frontier--\r\n"
    )
    return body, {"Content-Type": "multipart/form-data; boundary=frontier"}


@case
async def a_link_to_read(stand):
    path = f"{stand.directory}/file.txt"
    await settle(stand.files.write(path, "content"))
    status, headers, body = fetch(stand.sandbox.download_url(path))
    same((status, body), (200, b"content"))
    same(headers.get_content_type(), "text/plain")
    same(headers["Content-Length"], "7")
    assert headers["Content-Disposition"].startswith("inline"), headers.items()
    assert "file.txt" in headers["Content-Disposition"], headers.items()
    assert "accept-encoding" in headers["Vary"].lower(), headers.items()


@case
async def a_link_to_read_for_a_while(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "content"))
    url = stand.sandbox.download_url(path, use_signature_expiration=120)
    assert "signature_expiration=" in url, url
    same(fetch(url)[2], b"content")


@case
async def a_link_that_has_expired(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "content"))
    for url, data, headers in [
        (stand.sandbox.download_url(path, use_signature_expiration=-60), None, None),
        (stand.sandbox.upload_url(path, use_signature_expiration=-60), *form(b"x")),
    ]:
        refused(fetch(url, data, headers), "signature is already expired")
    same(await settle(stand.files.read(path)), "content")


@case
async def a_link_that_was_tampered_with(stand):
    path = f"{stand.directory}/wanted"
    await settle(stand.files.write(path, "content"))
    url = stand.sandbox.download_url(path, use_signature_expiration=120)
    expiration = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)[
        "signature_expiration"
    ][0]
    for other in [
        url.replace("wanted", "want"),
        f"{url}&username=root",
        url.replace(expiration, str(int(expiration) + 1)),
        url.replace("signature=v1_", "signature=v1_A"),
        url.replace("signature=v1_", "signature=v2_"),
        stand.sandbox.upload_url(path),
        # An expired one must not tell whether it was right once.
        stand.sandbox.download_url(path, use_signature_expiration=-60).replace(
            "signature=v1_", "signature=v1_A"
        ),
    ]:
        refused(fetch(other), "invalid signature")
    # A link to read is none to write.
    refused(fetch(stand.sandbox.download_url(path), *form(b"x")), "invalid signature")


@case
async def a_link_without_a_signature(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "content"))
    plain = f"{URL}/files?path={path}"
    refused(fetch(plain), "missing signature query parameter")
    refused(fetch(plain, *form(b"x")), "missing signature query parameter")
    same(fetch(plain, headers={"X-Access-Token": TOKEN})[2], b"content")


@case
async def a_token_counts_more_than_a_signature(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "content"))
    status, _, _ = fetch(
        stand.sandbox.download_url(path), headers={"X-Access-Token": "wrong"}
    )
    same(status, 401)
    expired = stand.sandbox.download_url(path, use_signature_expiration=-60)
    same(fetch(expired, headers={"X-Access-Token": TOKEN})[0], 200)


@case
async def signatures_open_files_and_nothing_else(stand):
    signed = urllib.parse.urlsplit(stand.sandbox.download_url("")).query
    for path, body in [("envs", None), ("metrics", None), ("process.Process/List", b"{}")]:
        status, _, _ = fetch(f"{URL}/{path}?{signed}", body, ROUTE)
        same((path, status), (path, 401))


@case
async def a_link_to_write_with_a_form(stand):
    path = f"{stand.directory}/sub/file"
    status, headers, body = fetch(stand.sandbox.upload_url(path), *form(b"\0content"))
    same(status, 200)
    same(json.loads(body), [{"name": "file", "path": path, "type": "file"}])
    same(bytes(await settle(stand.files.read(path, format="bytes"))), b"\0content")
    same(await stand.output(f"stat -c %U:%G {path}"), "user:user\n")


@case
async def a_link_to_write_without_a_form(stand):
    path = f"{stand.directory}/file"
    url = stand.sandbox.upload_url(path, use_signature_expiration=120)
    octets = {"Content-Type": "application/octet-stream"}
    status, _, body = fetch(url, b"\0octets", octets)
    same(status, 200)
    same(json.loads(body), [{"name": "file", "path": path, "type": "file"}])
    same(bytes(await settle(stand.files.read(path, format="bytes"))), b"\0octets")


@case
async def a_link_to_write_anything(stand):
    name = stand.directory.rsplit("/", 1)[1]
    url = stand.sandbox.upload_url("")
    assert "path=" not in url, url
    status, _, body = fetch(url, *form(b"1", f"{name}/named/by/form"))
    same(status, 200)
    path = f"{HOME}/{name}/named/by/form"
    same(json.loads(body), [{"name": "form", "path": path, "type": "file"}])


@case
async def a_link_for_another_user(stand):
    name = stand.directory.rsplit("/", 1)[1]
    write = stand.sandbox.upload_url(name, user="root")
    assert "username=root" in write, write
    same(fetch(write, *form(b"of root"))[0], 200)
    same(fetch(stand.sandbox.download_url(name, user="root"))[2], b"of root")
    same(
        await stand.output(f"stat -c %U /root/{name}", user="root"),
        "root\n",
    )
    status, _, body = fetch(stand.sandbox.download_url(name, user="nobody-here"))
    same(
        (status, json.loads(body)),
        (401, {"code": 401, "message": "invalid username: 'nobody-here'"}),
    )


@case
async def links_with_names_of_all_kinds(stand):
    for name in ["with space", "a+b%20c&d=e#f?g", "日本語 😀", "semi;colon:and,comma"]:
        path = f"{stand.directory}/{name}"
        same(fetch(stand.sandbox.upload_url(path), *form(name.encode()))[0], 200)
        same(await settle(stand.files.read(path)), name)
        url = stand.sandbox.download_url(path, use_signature_expiration=60)
        status, headers, body = fetch(url)
        same((status, body), (200, name.encode()))
        assert headers["Content-Disposition"].startswith("inline"), headers.items()


@case
async def links_with_paths_from_home(stand):
    await settle(stand.files.write("~/of links", "content"))
    for path in ["of links", "~/of links", "./of links"]:
        same(fetch(stand.sandbox.download_url(path))[2], b"content")


@case
async def a_link_to_what_is_not_there(stand):
    for path, expected in [(f"{stand.directory}/missing", 404), ("/etc", 400)]:
        status, headers, body = fetch(stand.sandbox.download_url(path))
        same((path, status), (path, expected))
        answer = json.loads(body)
        same((set(answer), answer["code"]), ({"code", "message"}, expected))


@case
async def parts_of_a_file(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "0123456789"))
    url = stand.sandbox.download_url(path)
    for asked, status, body, content_range in [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
    ]:
        answer = fetch(url, headers={"Range": asked})
        same((asked, answer[0], answer[1]["Content-Range"]), (asked, status, content_range))
        if body is not None:
            same((asked, answer[2]), (asked, body))


@case
async def a_file_that_did_not_change(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "content"))
    url = stand.sandbox.download_url(path)
    status, headers, _ = fetch(url)
    same(status, 200)
    modified = headers["Last-Modified"]
    status, _, body = fetch(url, headers={"If-Modified-Since": modified})
    same((status, body), (304, b""))
    early = "Thu, 01 Jan 1970 00:00:00 GMT"
    same(fetch(url, headers={"If-Modified-Since": early})[0], 200)


@case
async def content_types_by_name(stand):
    for name, expected in [
        ("page.html", "text/html"),
        ("image.png", "image/png"),
        ("data.json", "application/json"),
    ]:
        path = f"{stand.directory}/{name}"
        await settle(stand.files.write(path, "x"))
        _, headers, _ = fetch(stand.sandbox.download_url(path))
        same((name, headers.get_content_type()), (name, expected))


@case
async def compression_is_negotiated(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "x" * 100_000))
    url = stand.sandbox.download_url(path)
    for accepted, encoding in [
        ("gzip", "gzip"),
        ("identity", None),
        ("gzip;q=0", None),
        ("br", None),
    ]:
        status, headers, body = fetch(url, headers={"Accept-Encoding": accepted})
        same((accepted, status, headers["Content-Encoding"]), (accepted, 200, encoding))
        same(len(body) == 100_000, encoding is None)
    status, _, _ = fetch(url, headers={"Accept-Encoding": "identity;q=0, br"})
    same(status, 406)


@case
async def uploads_of_unknown_kinds(stand):
    url = stand.sandbox.upload_url(f"{stand.directory}/file")
    for kind in ["text/plain", "application/json", "application/x-www-form-urlencoded"]:
        status, _, body = fetch(url, b"{}", {"Content-Type": kind})
        same((kind, status, json.loads(body)["code"]), (kind, 400, 400))


@case
async def the_signature_of_the_sdk_is_ours(stand):
    # Vectors of the contract, so that a change of either side is noticed.
    same(
        get_signature("/home/user/a.txt", "read", None, "tok123")["signature"],
        "v1_byj2OB/vujgbES/1KAKCaR27E+9eOrB6PzeTnIL8L6M",
    )
    ahead = 1_800_000_000 - int(time.time())
    signed = get_signature("a.txt", "write", "root", "tok123", ahead)
    if signed["expiration"] == 1_800_000_000:
        same(signed["signature"], "v1_PBhbIJd7+wpG6UYY8++mBm3J6DCbN+HU65YmGxGySuI")
