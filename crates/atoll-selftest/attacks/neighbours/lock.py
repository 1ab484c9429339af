# tried: notices a lock that another sandbox holds on a file of the layers both stand on
# wall: each sandbox has an overlay of its own, whose inodes carry the locks
# control: neighbour
import fcntl
with open(TARGET["n_locked"]) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        report(False, "the file is not locked here")
    except BlockingIOError:
        report(True, "it is locked")
