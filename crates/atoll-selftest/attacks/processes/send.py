# tried: sends a signal to a process of the host by {variant}
# wall: a pid namespace: a process outside has no number here
# wall-gvisor: gVisor's kernel knows its own processes only
# control: room
import fcntl, signal
pid = TARGET["pid"]


def by_call(number, *arguments):
    _, error = call(number, *arguments)
    report(error is None, error or "sent")


def as_owner_of_a_file():
    # The kernel would send it when the pipe has something to read.
    end, _ = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETOWN, pid)
    report(fcntl.fcntl(end, fcntl.F_GETOWN) == pid, "it would be sent")


def by_descriptor():
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        report(False, errno.errorcode[error.errno])
    by_call(424, descriptor, 0, 0, 0)


# Signal 0, which nobody feels: the kernel has decided by then.
{
    "tgkill": lambda: by_call(234, pid, pid, 0),
    "tkill": lambda: by_call(200, pid, 0),
    "its-group": lambda: by_call(62, -pid, 0),
    "a-descriptor": by_descriptor,
    "the-owner-of-a-file": as_owner_of_a_file,
    "a-priority": lambda: by_call(141, 0, pid, os.getpriority(os.PRIO_PROCESS, pid)),
}[TARGET["variant"]]()
