# tried: watches another sandbox open a file of the layers both stand on
# wall: each sandbox has an overlay of its own, whose inodes carry the watches
# control: neighbour
import select
watch = libc.inotify_init()
libc.inotify_add_watch(watch, TARGET["n_opened"].encode(), 0x20)  # IN_OPEN
seen, _, _ = select.select([watch], [], [], 1.5)
report(seen, "it was opened" if seen else "nothing for 1.5 s")
