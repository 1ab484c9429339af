"""Standard output and error of Python kernels, without waiting for nothing.

ipykernel flushes both streams six times for each cell, each time by way of
another thread, and then sleeps for half a millisecond, because what programs
write to the descriptors themselves is taken by threads that may be late. Here,
who flushes takes what lies there himself, and waits only where something was
written. Nothing comes later for that: everything goes through one thread, in order.

Executed by `forkserver.py` before there is a kernel; `install` is all it calls.
"""

import os
import select
import threading

# What one flush takes of what others write at the same time.
_PIECES_MAX = 64
_PIECE_BYTES = 64 * 1024


def install():
    from ipykernel.iostream import OutStream

    flush = OutStream.flush

    def flush_what_is_there(self):
        _take(self)
        if self._buffers or self.echo is not None:
            flush(self)

    flush_what_is_there.__doc__ = flush.__doc__
    OutStream.flush = flush_what_is_there
    OutStream._watch_pipe_fd = _watch
    OutStream._atoll_taking = threading.RLock()


def _take(stream):
    """Takes what was written to the descriptor of a stream."""
    # Forks have the descriptors of their parent, who is the one to read.
    if not stream._should_watch or os.getpid() != stream._master_pid:
        return
    for _ in range(_PIECES_MAX):
        if not _take_piece(stream):
            return


def _take_piece(stream):
    """Whether there was something; None when there will never be."""
    # Taken and written as one step: who finds nothing finds it written.
    with stream._atoll_taking:
        if not _is_readable(stream._fid, 0):
            return False
        piece = os.read(stream._fid, _PIECE_BYTES)
        if not piece:
            return None
        stream.write(piece.decode(errors="replace"))
    os.write(stream._original_stdstream_copy, piece)
    return True


def _is_readable(descriptor, timeout):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout))


def _watch(stream):
    """Takes what is written while nobody flushes; the thread of a stream."""
    try:
        while stream._should_watch:
            _is_readable(stream._fid, None)
            if _take_piece(stream) is None:
                return
    except Exception:
        import sys

        stream._exc = sys.exc_info()
