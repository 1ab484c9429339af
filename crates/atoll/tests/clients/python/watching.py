"""Watched directories: one flavour asks for events, the other is told."""

import asyncio

from e2b import (
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)

from suite import ASYNC, BOUND_SECONDS, SYNC, case, eventually, raised, same, settle

CREATE, WRITE, REMOVE, RENAME, CHMOD = (
    FilesystemEventType.CREATE,
    FilesystemEventType.WRITE,
    FilesystemEventType.REMOVE,
    FilesystemEventType.RENAME,
    FilesystemEventType.CHMOD,
)


class Watch:
    """A watched directory, and what was seen so far."""

    def __init__(self):
        self.events = []

    @classmethod
    async def open(cls, stand, path, **options):
        self = cls()
        self.stand, self.path = stand, path
        if stand.is_async:
            self.handle = await stand.files.watch_dir(
                path, on_event=self.events.append, **options
            )
        else:
            self.handle = stand.files.watch_dir(path, **options)
        return self

    async def seen(self):
        """Everything up to now: a file of our own marks the place."""
        marker = "the-end-of-the-case"
        await self.stand.run(f"mkdir {self.path}/{marker}", user="root")

        def marked():
            if not self.stand.is_async:
                self.events.extend(self.handle.get_new_events())
            return any(event.name == marker for event in self.events)

        await eventually("the marker", marked)
        end = [event.name for event in self.events].index(marker)
        await settle(self.handle.stop())
        return self.events[:end]

    async def told(self):
        return [(event.name, event.type) for event in await self.seen()]


async def watched(stand, **options):
    await settle(stand.files.make_dir(stand.directory))
    return await Watch.open(stand, stand.directory, **options)


@case
async def a_new_file_makes_three_events(stand):
    watch = await watched(stand)
    await settle(stand.files.write(f"{stand.directory}/new", "content"))
    same(await watch.told(), [("new", CREATE), ("new", CHMOD), ("new", WRITE)])


@case
async def a_new_file_without_a_form_makes_three_events(stand):
    watch = await watched(stand)
    await settle(
        stand.files.write(f"{stand.directory}/new", "content", use_octet_stream=True)
    )
    same(await watch.told(), [("new", CREATE), ("new", CHMOD), ("new", WRITE)])


@case
async def a_replaced_file(stand):
    await settle(stand.files.write(f"{stand.directory}/file", "old"))
    watch = await Watch.open(stand, stand.directory)
    await settle(stand.files.write(f"{stand.directory}/file", "new"))
    told = await watch.told()
    assert ("file", WRITE) in told, told
    assert {name for name, _ in told} == {"file"}, told
    assert ("file", CREATE) not in told, told


@case
async def files_of_programs(stand):
    watch = await watched(stand)
    await stand.run("echo x > made; chmod 600 made", cwd=stand.directory)
    same(await watch.told(), [("made", CREATE), ("made", WRITE), ("made", CHMOD)])


@case
async def another_name(stand):
    await settle(stand.files.write(f"{stand.directory}/old", "x"))
    watch = await Watch.open(stand, stand.directory)
    await settle(
        stand.files.rename(f"{stand.directory}/old", f"{stand.directory}/new")
    )
    told = await watch.told()
    same(sorted(told, key=str), sorted([("old", RENAME), ("new", CREATE)], key=str))


@case
async def out_of_the_directory(stand):
    await settle(stand.files.write(f"{stand.directory}/sub/inside", "x"))
    watch = await Watch.open(stand, f"{stand.directory}/sub")
    await settle(
        stand.files.rename(f"{stand.directory}/sub/inside", f"{stand.directory}/outside")
    )
    same(await watch.told(), [("inside", RENAME)])


@case
async def a_file_is_gone(stand):
    await settle(stand.files.write(f"{stand.directory}/file", "x"))
    watch = await Watch.open(stand, stand.directory)
    await settle(stand.files.remove(f"{stand.directory}/file"))
    same(await watch.told(), [("file", REMOVE)])


@case
async def a_new_directory(stand):
    watch = await watched(stand)
    await stand.run("mkdir made", cwd=stand.directory)
    same(await watch.told(), [("made", CREATE)])


@case
async def what_is_deeper_is_not_seen(stand):
    await settle(stand.files.make_dir(f"{stand.directory}/sub"))
    watch = await Watch.open(stand, stand.directory)
    await stand.run("touch sub/file", cwd=stand.directory)
    same([event for event in await watch.told() if event[1] == CREATE], [])


@case
async def what_is_deeper_is_seen_when_asked_for(stand):
    await settle(stand.files.make_dir(f"{stand.directory}/sub/deep"))
    watch = await Watch.open(stand, stand.directory, recursive=True)
    await settle(stand.files.write(f"{stand.directory}/sub/deep/file", "x"))
    await settle(stand.files.write(f"{stand.directory}/top", "x"))
    told = await watch.told()
    same(
        [event for event in told if event[0] in ("sub/deep/file", "top")],
        [
            (name, kind)
            for name in ("sub/deep/file", "top")
            for kind in (CREATE, CHMOD, WRITE)
        ],
    )


@case
async def directories_made_later_are_watched(stand):
    watch = await watched(stand, recursive=True)
    await settle(stand.files.make_dir(f"{stand.directory}/later"))
    await settle(stand.files.make_dir(f"{stand.directory}/later/deeper"))
    await settle(stand.files.write(f"{stand.directory}/later/deeper/file", "x"))
    told = await watch.told()
    for expected in [
        ("later", CREATE),
        ("later/deeper", CREATE),
        ("later/deeper/file", CREATE),
        ("later/deeper/file", WRITE),
    ]:
        assert expected in told, (expected, told)


@case
async def trees_made_at_once_are_watched(stand):
    watch = await watched(stand, recursive=True)
    await stand.run("mkdir -p a/b/c; echo x > a/b/c/file", cwd=stand.directory)

    # What came into being before the watch was set is looked for, so each
    # name is told, whatever its kind of event.
    told = {name for name, _ in await watch.told()}
    assert {"a", "a/b", "a/b/c", "a/b/c/file"} <= told, told


@case
async def directories_with_another_name_are_watched(stand):
    await settle(stand.files.make_dir(f"{stand.directory}/old"))
    watch = await Watch.open(stand, stand.directory, recursive=True)
    await stand.run("mv old new", cwd=stand.directory)
    await settle(stand.files.write(f"{stand.directory}/new/file", "x"))
    told = await watch.told()
    assert ("new", CREATE) in told, told
    assert ("new/file", WRITE) in told, told


@case
async def events_with_what_the_path_is(stand):
    watch = await watched(stand, include_entry=True)
    await settle(stand.files.write(f"{stand.directory}/file", "12345"))
    await eventually("the write", lambda: wrote(watch))
    await settle(stand.files.remove(f"{stand.directory}/file"))
    events = await watch.seen()
    same([event.type for event in events], [CREATE, CHMOD, WRITE, REMOVE])
    for event in events[:3]:
        info = event.entry
        same(
            (info.name, info.path, info.type, info.permissions, info.owner),
            ("file", f"{stand.directory}/file", FileType.FILE, "-rw-r--r--", "user"),
        )
    same(events[2].entry.size, 5)
    same(events[3].entry, None)


def wrote(watch):
    if not watch.stand.is_async:
        watch.events.extend(watch.handle.get_new_events())
    return any(event.type == WRITE for event in watch.events)


@case
async def events_without_what_the_path_is(stand):
    watch = await watched(stand)
    await settle(stand.files.write(f"{stand.directory}/file", "x"))
    same([event.entry for event in await watch.seen()], [None] * 3)


@case
async def a_hundred_files(stand):
    watch = await watched(stand)
    await stand.run("for i in $(seq 100); do echo x > f$i; done", cwd=stand.directory)
    same(
        await watch.told(),
        [(f"f{n}", kind) for n in range(1, 101) for kind in (CREATE, WRITE)],
    )


@case
async def a_relative_path_is_watched(stand):
    await settle(stand.files.make_dir(stand.directory))
    watch = await Watch.open(stand, f"~/{stand.directory.rsplit('/', 1)[1]}")
    watch.path = stand.directory
    await stand.run("touch file", cwd=stand.directory)
    told = await watch.told()
    assert told[0] == ("file", CREATE), told


@case
async def two_watches_of_one_directory(stand):
    first = await watched(stand)
    second = await Watch.open(stand, stand.directory)
    await settle(stand.files.write(f"{stand.directory}/new", "content"))
    expected = [("new", CREATE), ("new", CHMOD), ("new", WRITE)]
    same(await first.told(), expected)
    await settle(stand.files.remove(f"{stand.directory}/the-end-of-the-case"))
    # The second saw the marker of the first as well.
    same((await second.told())[:3], expected)


@case
async def what_cannot_be_watched(stand):
    await raised(
        FileNotFoundException, lambda: Watch.open(stand, f"{stand.directory}/missing")
    )
    await settle(stand.files.write(f"{stand.directory}/file", "x"))
    await raised(
        InvalidArgumentException, lambda: Watch.open(stand, f"{stand.directory}/file")
    )


@case
async def network_mounts_may_be_allowed(stand):
    watch = await watched(stand, allow_network_mounts=True)
    await stand.run("touch file", cwd=stand.directory)
    assert ("file", CREATE) in await watch.told()


@case(only=SYNC)
async def events_are_handed_over_once(stand):
    watch = await watched(stand)
    stand.files.write(f"{stand.directory}/new", "content")
    same([event.type for event in watch.handle.get_new_events()], [CREATE, CHMOD, WRITE])
    same(watch.handle.get_new_events(), [])
    watch.handle.stop()
    await raised(SandboxException, watch.handle.get_new_events)


@case(only=SYNC)
async def a_stopped_watcher_is_gone(stand):
    watch = await watched(stand)
    watch.handle.stop()
    # The SDK would not ask again; the guest must not answer either.
    watch.handle._closed = False
    await raised(NotFoundException, watch.handle.get_new_events)


@case(only=ASYNC)
async def the_end_of_a_watch_is_told(stand):
    endings = []
    watch = await watched(stand, on_exit=endings.append)
    await stand.run("touch file", cwd=stand.directory)
    await eventually("an event", lambda: watch.events)
    same(endings, [])
    await watch.handle.stop()
    same(endings, [None])


@case(only=ASYNC)
async def a_watch_beyond_its_time(stand):
    ended = asyncio.get_running_loop().create_future()
    await watched(stand, on_exit=ended.set_result, timeout=1)
    error = await asyncio.wait_for(ended, BOUND_SECONDS)
    same(type(error), TimeoutException)
