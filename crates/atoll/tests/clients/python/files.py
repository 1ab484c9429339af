"""Files: content in and out, and what is known about them."""

import gzip
import hashlib
import io
from datetime import datetime, timedelta, timezone

from e2b import (
    AuthenticationException,
    EntryInfo,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    WriteInfo,
)

from suite import ASYNC, HOME, SYNC, case, raised, same, settle

# More than any buffer on the way, and nothing that compresses away.
BLOCK = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(256))
MUCH = BLOCK * 384


def entry(path, kind=FileType.FILE, size=0, **other):
    """An entry as a new one of the default user looks."""
    fields = {
        "name": path.rsplit("/", 1)[1],
        "type": kind,
        "path": path,
        "size": size,
        "mode": 0o755 if kind == FileType.DIR else 0o644,
        "permissions": "drwxr-xr-x" if kind == FileType.DIR else "-rw-r--r--",
        "owner": "user",
        "group": "user",
        "symlink_target": None,
        "metadata": None,
    }
    return {**fields, **other}


def seen(info):
    """All fields but those that are not known before; these only make sense."""
    assert type(info) is EntryInfo, info
    fields = dict(vars(info))
    modified = fields.pop("modified_time")
    assert modified.tzinfo is not None, modified
    age = datetime.now(timezone.utc) - modified
    assert timedelta(minutes=-1) < age < timedelta(days=3650), modified
    if info.type == FileType.DIR:
        fields["size"] = 0
    return fields


@case
async def a_text_is_written_and_read(stand):
    path = f"{stand.directory}/a.txt"
    info = await settle(stand.files.write(path, "first\nsecond €😀\n"))
    same(info, WriteInfo(name="a.txt", type=FileType.FILE, path=path))
    same(await settle(stand.files.read(path)), "first\nsecond €😀\n")
    same(await stand.output(f"cat {path}"), "first\nsecond €😀\n")


@case
async def all_bytes_come_back(stand):
    path = f"{stand.directory}/bytes"
    content = bytes(range(256)) * 5
    await settle(stand.files.write(path, content))
    answer = await settle(stand.files.read(path, format="bytes"))
    same((type(answer), bytes(answer)), (bytearray, content))


@case
async def an_empty_file(stand):
    path = f"{stand.directory}/empty"
    info = await settle(stand.files.write(path, ""))
    same(info, WriteInfo(name="empty", type=FileType.FILE, path=path))
    same(await settle(stand.files.read(path)), "")
    same(await settle(stand.files.read(path, format="bytes")), bytearray())
    same((await settle(stand.files.get_info(path))).size, 0)


@case
async def a_large_file(stand):
    path = f"{stand.directory}/large"
    assert len(MUCH) > 3_000_000
    await settle(stand.files.write(path, MUCH))
    answer = await settle(stand.files.read(path, format="bytes"))
    assert answer == MUCH, len(answer)
    digest = hashlib.sha256(MUCH).hexdigest()
    same(await stand.output(f"sha256sum < {path}"), f"{digest}  -\n")


@case
async def a_file_is_read_as_a_stream(stand):
    path = f"{stand.directory}/large"
    await settle(stand.files.write(path, MUCH))
    stream = await settle(stand.files.read(path, format="stream"))
    pieces = [piece async for piece in stream] if stand.is_async else list(stream)
    assert len(pieces) > 1
    assert b"".join(pieces) == MUCH, sum(map(len, pieces))


@case
async def a_stream_that_is_not_read_to_its_end(stand):
    path = f"{stand.directory}/large"
    await settle(stand.files.write(path, MUCH))
    for _ in range(12):
        stream = await settle(stand.files.read(path, format="stream"))
        if stand.is_async:
            await stream.__anext__()
            await stream.aclose()
        else:
            next(stream)
            stream.close()
    same(len(await settle(stand.files.read(path, format="bytes"))), len(MUCH))


@case(only=SYNC)
async def a_file_is_written_as_a_stream(stand):
    path = f"{stand.directory}/streamed"
    pieces = [BLOCK[start : start + 1000] for start in range(0, len(BLOCK), 1000)]
    info = stand.files.write(path, iter(pieces))
    same(info, WriteInfo(name="streamed", type=FileType.FILE, path=path))
    same(bytes(stand.files.read(path, format="bytes")), BLOCK)
    stand.files.write(path, io.BytesIO(MUCH))
    assert bytes(stand.files.read(path, format="bytes")) == MUCH
    stand.files.write(path, io.StringIO("text €"))
    same(stand.files.read(path), "text €")


@case(only=ASYNC)
async def a_file_is_written_as_an_async_stream(stand):
    path = f"{stand.directory}/streamed"

    async def pieces():
        for start in range(0, len(BLOCK), 1000):
            yield BLOCK[start : start + 1000]

    info = await stand.files.write(path, pieces())
    same(info, WriteInfo(name="streamed", type=FileType.FILE, path=path))
    same(bytes(await stand.files.read(path, format="bytes")), BLOCK)
    await stand.files.write(path, io.BytesIO(MUCH))
    assert bytes(await stand.files.read(path, format="bytes")) == MUCH


@case
async def an_upload_without_a_form(stand):
    path = f"{stand.directory}/octets"
    info = await settle(stand.files.write(path, b"\0\1\2", use_octet_stream=True))
    same(info, WriteInfo(name="octets", type=FileType.FILE, path=path))
    same(bytes(await settle(stand.files.read(path, format="bytes"))), b"\0\1\2")
    await settle(stand.files.write(path, b"", use_octet_stream=True))
    same(await settle(stand.files.read(path)), "")


@case
async def several_files_at_once(stand):
    paths = [f"{stand.directory}/{name}" for name in ["1", "sub/2", "sub/deep/er/3"]]
    infos = await settle(
        stand.files.write_files([{"path": path, "data": path} for path in paths])
    )
    same(
        infos,
        [
            WriteInfo(name=path.rsplit("/", 1)[1], type=FileType.FILE, path=path)
            for path in paths
        ],
    )
    for path in paths:
        same(await settle(stand.files.read(path)), path)
    same(await settle(stand.files.write_files([])), [])


@case
async def several_files_with_relative_paths(stand):
    infos = await settle(
        stand.files.write_files(
            [
                {"path": "relative_files/x/1", "data": "1"},
                {"path": "~/relative_files/2", "data": b"2"},
            ]
        )
    )
    same(
        [info.path for info in infos],
        [f"{HOME}/relative_files/x/1", f"{HOME}/relative_files/2"],
    )


@case
async def one_file_twice_at_once(stand):
    path = f"{stand.directory}/same"
    await raised(
        InvalidArgumentException,
        lambda: stand.files.write_files([{"path": path, "data": "a"}] * 2),
    )


@case
async def several_files_without_a_form(stand):
    paths = [f"{stand.directory}/{name}" for name in "abc"]
    infos = await settle(
        stand.files.write_files(
            [{"path": path, "data": path} for path in paths], use_octet_stream=True
        )
    )
    same([info.path for info in infos], paths)
    same([await settle(stand.files.read(path)) for path in paths], paths)


@case
async def names_of_all_kinds(stand):
    names = [
        "héllo wörld.txt",
        "日本語/ファイル",
        "emoji 😀",
        "a+b%20c&d=e#f?g",
        "quote\"s and 'these'",
        "back\\slash",
        "semi;colon,comma",
        "-dash",
        "..hidden",
        " leading and trailing ",
    ]
    for name in names:
        path = f"{stand.directory}/{name}"
        info = await settle(stand.files.write(path, name))
        same((info.path, info.name), (path, name.rsplit("/", 1)[-1]))
        same(await settle(stand.files.read(path)), name)
        same((await settle(stand.files.get_info(path))).path, path)
    listed = {info.name for info in await settle(stand.files.list(stand.directory))}
    same(listed, {name.split("/")[0] for name in names})
    for name in names:
        await settle(stand.files.remove(f"{stand.directory}/{name.split('/')[0]}"))
    same(await settle(stand.files.list(stand.directory)), [])


@case
async def names_of_all_kinds_in_one_upload(stand):
    names = ["héllo wörld.txt", "日本語/ファイル", "emoji 😀", "a+b%20c&d=e#f?g", "semi;colon"]
    paths = [f"{stand.directory}/{name}" for name in names]
    infos = await settle(
        stand.files.write_files([{"path": path, "data": path} for path in paths])
    )
    same([info.path for info in infos], paths)
    same([await settle(stand.files.read(path)) for path in paths], paths)


@case
async def a_file_is_replaced(stand):
    path = f"{stand.directory}/replaced"
    await settle(stand.files.write(path, "a long first text"))
    await stand.run(f"chmod 600 {path}")
    await settle(stand.files.write(path, "short"))
    same(await settle(stand.files.read(path)), "short")
    same(await stand.output(f"stat -c %a {path}"), "600\n")


@case
async def directories_are_made_for_a_file(stand):
    path = f"{stand.directory}/a/b/c/file"
    await settle(stand.files.write(path, "x"))
    listed = await settle(stand.files.list(stand.directory, depth=4))
    same(
        [seen(info) for info in listed],
        [
            entry(f"{stand.directory}/a", FileType.DIR),
            entry(f"{stand.directory}/a/b", FileType.DIR),
            entry(f"{stand.directory}/a/b/c", FileType.DIR),
            entry(path, size=1),
        ],
    )


@case
async def what_cannot_be_read(stand):
    missing = await raised(
        FileNotFoundException, lambda: stand.files.read(f"{stand.directory}/missing")
    )
    assert f"{stand.directory}/missing" in str(missing), missing
    for form in ["text", "bytes", "stream"]:
        await raised(
            FileNotFoundException, lambda: stand.files.read("/no/such", format=form)
        )
        await raised(InvalidArgumentException, lambda: stand.files.read("/etc", format=form))


@case
async def what_cannot_be_written(stand):
    await settle(stand.files.make_dir(stand.directory))
    await settle(stand.files.write(f"{stand.directory}/file", "x"))
    for path in [stand.directory, f"{stand.directory}/file/below"]:
        for octets in [False, True]:
            await raised(
                InvalidArgumentException,
                lambda: stand.files.write(path, "x", use_octet_stream=octets),
            )
    same(await settle(stand.files.read(f"{stand.directory}/file")), "x")


@case
async def files_without_a_size(stand):
    boot_id = await settle(stand.files.read("/proc/sys/kernel/random/boot_id"))
    same(len(boot_id), 37)
    status = await settle(stand.files.read("/proc/self/status"))
    assert "Name:" in status, status
    same(boot_id, await stand.output("cat /proc/sys/kernel/random/boot_id"))


@case
async def data_beside_a_file(stand):
    path = f"{stand.directory}/with-data"
    given = {"Author": "somebody", "x-y_z.1": "a b;c=d"}
    kept = {"author": "somebody", "x-y_z.1": "a b;c=d"}
    info = await settle(stand.files.write(path, "x", metadata=given))
    same(info, WriteInfo(name="with-data", type=FileType.FILE, path=path, metadata=kept))
    same((await settle(stand.files.get_info(path))).metadata, kept)
    listed = await settle(stand.files.list(stand.directory))
    same([info.metadata for info in listed], [kept])
    moved = await settle(stand.files.rename(path, f"{path}-moved"))
    same(moved.metadata, kept)


@case
async def data_beside_a_file_is_replaced_as_a_whole(stand):
    path = f"{stand.directory}/with-data"
    await settle(stand.files.write(path, "x", metadata={"a": "1", "b": "2"}))
    await settle(stand.files.write(path, "x", metadata={"b": "3"}, use_octet_stream=True))
    same((await settle(stand.files.get_info(path))).metadata, {"b": "3"})
    info = await settle(stand.files.write(path, "x"))
    same(info.metadata, None)
    same((await settle(stand.files.get_info(path))).metadata, None)


@case
async def data_beside_several_files(stand):
    paths = [f"{stand.directory}/{name}" for name in "ab"]
    infos = await settle(
        stand.files.write_files(
            [{"path": path, "data": "x"} for path in paths], metadata={"k": "v"}
        )
    )
    same([info.metadata for info in infos], [{"k": "v"}] * 2)
    for path in paths:
        same((await settle(stand.files.get_info(path))).metadata, {"k": "v"})


@case
async def too_much_data_beside_a_file(stand):
    path = f"{stand.directory}/with-data"
    for metadata in [
        {"k": "v" * 4097},
        {"k" * 247: "v"},
        {str(n): "v" * 100 for n in range(41)},
    ]:
        await raised(
            InvalidArgumentException,
            lambda: stand.files.write(path, "x", metadata=metadata),
        )
    # As much as one block of ext4 holds besides its own marks.
    longest = {"k" * 246: "v" * 3700}
    await settle(stand.files.write(path, "x", metadata=longest))
    same((await settle(stand.files.get_info(path))).metadata, longest)


@case
async def data_that_programs_wrote(stand):
    path = f"{stand.directory}/with-data"
    await settle(stand.files.write(path, "x"))
    await stand.run(
        f"python3 -c 'import os; os.setxattr(\"{path}\", \"user.e2b.own\", b\"1\");"
        f" os.setxattr(\"{path}\", \"user.other\", b\"2\")'"
    )
    same((await settle(stand.files.get_info(path))).metadata, {"own": "1"})


@case
async def compressed_both_ways(stand):
    path = f"{stand.directory}/compressed"
    content = b"compress me " * 50_000
    info = await settle(stand.files.write(path, content, gzip=True))
    same(info, WriteInfo(name="compressed", type=FileType.FILE, path=path))
    same((await settle(stand.files.get_info(path))).size, len(content))
    same(bytes(await settle(stand.files.read(path, format="bytes", gzip=True))), content)
    same(await settle(stand.files.read(path, gzip=True)), content.decode())
    stream = await settle(stand.files.read(path, format="stream", gzip=True))
    pieces = [piece async for piece in stream] if stand.is_async else list(stream)
    same(b"".join(pieces), content)


@case
async def a_compressed_file_stays_compressed(stand):
    path = f"{stand.directory}/file.gz"
    content = gzip.compress(b"text")
    await settle(stand.files.write(path, content))
    for compressed in [False, True]:
        answer = await settle(stand.files.read(path, format="bytes", gzip=compressed))
        same(bytes(answer), content)


@case
async def what_is_not_compressed_as_said(stand):
    # The SDK compresses itself; only a client of another make gets this wrong.
    import httpx

    from suite import TOKEN, URL

    answer = httpx.post(
        f"{URL}/files?path={stand.directory}/broken",
        content=b"this is no gzip",
        headers={
            "X-Access-Token": TOKEN,
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "gzip",
        },
    )
    same((answer.status_code, answer.json()["code"]), (400, 400))


@case
async def what_exists(stand):
    path = f"{stand.directory}/there"
    same(await settle(stand.files.exists(path)), False)
    await settle(stand.files.write(path, "x"))
    same(await settle(stand.files.exists(path)), True)
    same(await settle(stand.files.exists(stand.directory)), True)
    await stand.run(f"ln -s nowhere {stand.directory}/broken")
    same(await settle(stand.files.exists(f"{stand.directory}/broken")), True)


@case
async def what_a_file_is(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "12345"))
    same(seen(await settle(stand.files.get_info(path))), entry(path, size=5))
    await stand.run(
        f"chmod 4751 {path}; touch -d 2020-02-03T04:05:06.789Z {path}; sudo chown root:daemon {path}"
    )
    info = await settle(stand.files.get_info(path))
    same(
        (info.mode, info.permissions, info.owner, info.group, info.modified_time),
        (
            0o751,
            # As Go prints it; `chown` takes the set-uid bit away.
            "-rwxr-x--x",
            "root",
            "daemon",
            datetime(2020, 2, 3, 4, 5, 6, 789000, tzinfo=timezone.utc),
        ),
    )


@case
async def special_permissions(stand):
    await settle(stand.files.make_dir(stand.directory))
    await stand.run(
        "touch setuid setgid; mkdir sticky; chmod 4755 setuid; chmod 2750 setgid;"
        " chmod 1777 sticky",
        cwd=stand.directory,
    )
    listed = await settle(stand.files.list(stand.directory))
    same(
        [(info.name, info.mode, info.permissions) for info in listed],
        [
            ("setgid", 0o750, "grwxr-x---"),
            ("setuid", 0o755, "urwxr-xr-x"),
            ("sticky", 0o777, "dtrwxrwxrwx"),
        ],
    )


@case
async def what_a_directory_is(stand):
    await settle(stand.files.make_dir(stand.directory))
    info = await settle(stand.files.get_info(stand.directory))
    same(seen(info), entry(stand.directory, FileType.DIR))
    root = await settle(stand.files.get_info("/"))
    same((root.name, root.path, root.type), ("/", "/", FileType.DIR))


@case
async def what_a_link_is(stand):
    await settle(stand.files.write(f"{stand.directory}/target/file", "12345"))
    await stand.run(
        "chmod 640 target/file; ln -s target/file file; ln -s target directory;"
        " ln -s file second; ln -s nowhere broken",
        cwd=stand.directory,
    )
    link = {"permissions": "Lrwxrwxrwx"}
    for name, size, mode, target in [
        ("file", 11, 0o640, "target/file"),
        ("directory", 6, 0o755, "target"),
        ("second", 4, 0o640, "target/file"),
    ]:
        path = f"{stand.directory}/{name}"
        info = await settle(stand.files.get_info(path))
        same(
            seen(info),
            entry(
                path,
                FileType.SYMLINK,
                size,
                mode=mode,
                symlink_target=f"{stand.directory}/{target}",
                **link,
            ),
        )
    broken = await settle(stand.files.get_info(f"{stand.directory}/broken"))
    same((broken.type, broken.permissions), (FileType.SYMLINK, "Lrwxrwxrwx"))
    same(await settle(stand.files.read(f"{stand.directory}/second")), "12345")


@case
async def what_is_not_there(stand):
    path = f"{stand.directory}/missing"
    error = await raised(FileNotFoundException, lambda: stand.files.get_info(path))
    same(str(error), f"file not found: {path}")
    await raised(FileNotFoundException, lambda: stand.files.list(path))
    await raised(FileNotFoundException, lambda: stand.files.rename(path, f"{path}-2"))
    await settle(stand.files.remove(path))


@case
async def a_directory_is_listed(stand):
    await stand.run(
        f"mkdir -p {stand.directory}/b/d/f; cd {stand.directory};"
        " echo 1 > a; echo 1 > b.txt; echo 1 > b/c; echo 1 > b/d/e; echo 1 > g"
    )

    async def names(depth):
        listed = await settle(stand.files.list(stand.directory, depth=depth))
        return [info.path.removeprefix(f"{stand.directory}/") for info in listed]

    one = sorted(["a", "b", "b.txt", "g"])
    same(await names(1), one)
    same(sorted(await names(2)), sorted([*one, "b/c", "b/d"]))
    everything = await names(9)
    same(sorted(everything), sorted([*one, "b/c", "b/d", "b/d/e", "b/d/f"]))
    # Each directory comes before what is in it.
    same([name for name in everything if name.startswith("b/") or name == "b"],
         ["b", "b/c", "b/d", "b/d/e", "b/d/f"])
    listed = await settle(stand.files.list(stand.directory))
    same(
        [seen(info) for info in listed],
        [
            entry(f"{stand.directory}/a", size=2),
            entry(f"{stand.directory}/b", FileType.DIR),
            entry(f"{stand.directory}/b.txt", size=2),
            entry(f"{stand.directory}/g", size=2),
        ],
    )


@case
async def an_empty_directory_is_listed(stand):
    await settle(stand.files.make_dir(stand.directory))
    same(await settle(stand.files.list(stand.directory)), [])


@case
async def a_link_to_a_directory_is_listed(stand):
    await settle(stand.files.write(f"{stand.directory}/target/file", "x"))
    await stand.run(f"ln -s target {stand.directory}/link")
    listed = await settle(stand.files.list(f"{stand.directory}/link"))
    same([info.path for info in listed], [f"{stand.directory}/link/file"])


@case
async def links_in_a_listing_are_not_followed(stand):
    await settle(stand.files.write(f"{stand.directory}/target/file", "x"))
    await stand.run("ln -s target link; ln -s .. target/loop", cwd=stand.directory)
    listed = await settle(stand.files.list(stand.directory, depth=5))
    names = sorted(info.path.removeprefix(f"{stand.directory}/") for info in listed)
    same(names, ["link", "target", "target/file", "target/loop"])


@case
async def what_cannot_be_listed(stand):
    await settle(stand.files.write(f"{stand.directory}/file", "x"))
    await raised(
        InvalidArgumentException, lambda: stand.files.list(f"{stand.directory}/file")
    )
    await raised(
        InvalidArgumentException, lambda: stand.files.list(stand.directory, depth=0)
    )


@case
async def a_thousand_files_are_listed(stand):
    await stand.run(f"mkdir {stand.directory}; cd {stand.directory}; touch file-{{0001..1000}}")
    listed = await settle(stand.files.list(stand.directory))
    same([info.name for info in listed], [f"file-{n:04}" for n in range(1, 1001)])


@case
async def a_directory_is_made(stand):
    path = f"{stand.directory}/a/b/c"
    same(await settle(stand.files.make_dir(path)), True)
    same(await settle(stand.files.make_dir(path)), False)
    same(await settle(stand.files.make_dir(stand.directory)), False)
    same(await stand.output(f"stat -c '%U:%G %a' {stand.directory}/a {path}"),
         "user:user 755\nuser:user 755\n")


@case
async def a_directory_that_cannot_be_made(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "x"))
    await raised(InvalidArgumentException, lambda: stand.files.make_dir(path))
    await raised(InvalidArgumentException, lambda: stand.files.make_dir(f"{path}/below"))


@case
async def a_file_gets_another_name(stand):
    old, new = f"{stand.directory}/old", f"{stand.directory}/made/for/it/new"
    await settle(stand.files.write(old, "12345"))
    info = await settle(stand.files.rename(old, new))
    same(seen(info), entry(new, size=5))
    same(await settle(stand.files.exists(old)), False)
    same(await settle(stand.files.read(new)), "12345")
    same(await stand.output(f"stat -c %U {stand.directory}/made/for"), "user\n")


@case
async def a_directory_gets_another_name(stand):
    await settle(stand.files.write(f"{stand.directory}/old/file", "x"))
    info = await settle(
        stand.files.rename(f"{stand.directory}/old", f"{stand.directory}/new")
    )
    same(seen(info), entry(f"{stand.directory}/new", FileType.DIR))
    same(await settle(stand.files.read(f"{stand.directory}/new/file")), "x")


@case
async def a_file_takes_the_place_of_another(stand):
    old, new = f"{stand.directory}/old", f"{stand.directory}/new"
    await settle(stand.files.write(old, "old"))
    await settle(stand.files.write(new, "new"))
    await settle(stand.files.rename(old, new))
    same(await settle(stand.files.read(new)), "old")


@case
async def files_and_directories_are_removed(stand):
    for path in ["file", "full/of/files/1", "full/of/2"]:
        await settle(stand.files.write(f"{stand.directory}/{path}", "x"))
    await stand.run(f"ln -s /etc {stand.directory}/full/link; touch {stand.directory}/kept")
    for path in ["file", "full"]:
        same(await settle(stand.files.remove(f"{stand.directory}/{path}")), None)
        same(await settle(stand.files.exists(f"{stand.directory}/{path}")), False)
        # Once more is no error.
        await settle(stand.files.remove(f"{stand.directory}/{path}"))
    same(await settle(stand.files.exists("/etc/passwd")), True)
    same(await settle(stand.files.exists(f"{stand.directory}/kept")), True)


@case
async def a_link_is_removed_and_not_its_target(stand):
    await settle(stand.files.write(f"{stand.directory}/target/file", "x"))
    await stand.run(f"ln -s target {stand.directory}/link")
    await settle(stand.files.remove(f"{stand.directory}/link"))
    same(await settle(stand.files.exists(f"{stand.directory}/link")), False)
    same(await settle(stand.files.read(f"{stand.directory}/target/file")), "x")


@case
async def places_that_belong_to_root(stand):
    directory = f"/srv/{stand.directory.rsplit('/', 1)[1]}"
    path = f"{directory}/sub/file"
    await settle(stand.files.write(path, "x"))
    same(await stand.output(f"stat -c '%U:%G %a' {directory}/sub {path}"),
         "user:user 755\nuser:user 644\n")
    same(await settle(stand.files.make_dir(f"{directory}/made")), True)
    same(await stand.output(f"stat -c %U {directory}/made"), "user\n")
    await stand.run("echo hidden > /root/hidden; chmod 600 /root/hidden", user="root")
    same(await settle(stand.files.read("/root/hidden")), "hidden\n")
    await settle(stand.files.remove(directory))
    same(await settle(stand.files.exists(directory)), False)


@case
async def a_file_of_another_user(stand):
    path = f"{stand.directory}/file"
    await settle(stand.files.write(path, "x", user="root"))
    info = await settle(stand.files.get_info(path))
    same((info.owner, info.group), ("root", "root"))
    await settle(stand.files.write("relative_to_root", "x", user="root"))
    same(await settle(stand.files.read("/root/relative_to_root")), "x")
    same(await settle(stand.files.read("relative_to_root", user="root")), "x")
    same(await settle(stand.files.exists("relative_to_root", user="root")), True)
    same(await settle(stand.files.exists("relative_to_root")), False)
    await settle(stand.files.make_dir("made_by_root", user="root"))
    same(await stand.output("stat -c %U /root/made_by_root", user="root"), "root\n")


@case
async def paths_and_what_they_mean(stand):
    name = stand.directory.rsplit("/", 1)[1]
    for path in [f"{name}/1", f"~/{name}/1", f"./{name}//x/../1", f"{stand.directory}/1"]:
        info = await settle(stand.files.write(path, path))
        same(info.path, f"{stand.directory}/1")
        same(await settle(stand.files.read(f"{stand.directory}/1")), path)
        same((await settle(stand.files.get_info(path))).path, f"{stand.directory}/1")
    for path in ["~", "", "."]:
        listed = await settle(stand.files.list(path))
        assert f"{HOME}/{name}" in [info.path for info in listed], (path, listed)
    listed = await settle(stand.files.list("~", user="root"))
    assert "/root/.bashrc" in [info.path for info in listed], listed


@case
async def paths_that_mean_nothing(stand):
    for call in [
        lambda: stand.files.read("~root/x"),
        lambda: stand.files.write("~root/x", "x"),
        lambda: stand.files.get_info("~root/x"),
        lambda: stand.files.list("~root"),
        lambda: stand.files.make_dir("~root/x"),
    ]:
        await raised(InvalidArgumentException, call)


@case
async def users_that_are_missing(stand):
    for call in [
        lambda: stand.files.read("x", user="nobody-here"),
        lambda: stand.files.write("x", "x", user="nobody-here"),
        lambda: stand.files.write("x", "x", user="nobody-here", use_octet_stream=True),
        lambda: stand.files.get_info("x", user="nobody-here"),
        lambda: stand.files.exists("x", user="nobody-here"),
        lambda: stand.files.list("", user="nobody-here"),
        lambda: stand.files.make_dir("x", user="nobody-here"),
        lambda: stand.files.rename("x", "y", user="nobody-here"),
        lambda: stand.files.remove("x", user="nobody-here"),
    ]:
        error = await raised(AuthenticationException, call)
        same(str(error), "invalid username: 'nobody-here'")


@case
async def the_root_is_not_removed(stand):
    await raised(InvalidArgumentException, lambda: stand.files.remove("/"))
    same(await settle(stand.files.exists("/etc/passwd")), True)
