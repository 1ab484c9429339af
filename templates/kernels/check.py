"""Starts kernels of this template, runs a cell in each and says how long it took.

    check.py python3 javascript …

Ends with an error unless every one of them answers as it should.
"""

import queue
import sys
import time

from jupyter_client.manager import KernelManager

BOUND = 60

# For each kernel: a cell, and what must be in its output.
CELLS = {
    "python3": ("print(6 * 7)", "42"),
    "javascript": ("const answer: number = await Promise.resolve(6 * 7); console.log(answer)", "42"),
    "bash": ("echo $((6 * 7))", "42"),
    "ir": ("cat(6 * 7)", "42"),
    "java": ("System.out.println(6 * 7);", "42"),
}


def outputs(client, request):
    """Text of everything that a request has printed or given."""
    text = ""
    while True:
        message = client.get_iopub_msg(timeout=BOUND)
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                text += content["text"]
            case "execute_result" | "display_data":
                text += content["data"].get("text/plain", "")
            case "error":
                raise SystemExit(f"{content['ename']}: {content['evalue']}")
            case "status" if content["execution_state"] == "idle":
                return text


def check(name, transport):
    code, expected = CELLS[name]
    begun = time.monotonic()
    manager = KernelManager(kernel_name=name, transport=transport)
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=BOUND)
        ready = time.monotonic()
        text = outputs(client, client.execute(code))
        ended = time.monotonic()
    except queue.Empty:
        raise SystemExit(f"the kernel `{name}` did not answer within {BOUND} s") from None
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if expected not in text:
        raise SystemExit(f"the kernel `{name}` said {text!r} to {code!r}")
    print(f"{name} over {transport}: ready after {ready - begun:.2f} s, answered after {ended - ready:.3f} s")


for kernel in sys.argv[1:]:
    # The library of the Java kernel knows TCP alone.
    for way in ("tcp",) if kernel == "java" else ("ipc", "tcp"):
        check(kernel, way)
