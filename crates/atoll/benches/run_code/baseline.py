"""Cells through `jupyter_client`, the library that Jupyter itself uses.

It runs inside the sandbox, beside its kernel, and times itself: what it says
has no network in it. One JSON object per line comes in, one goes out:
`{"code": …}` runs a cell, `{"cold": …}` starts a kernel and runs one in it.
"""

import json
import sys
import time

from jupyter_client.manager import start_new_kernel, KernelManager


def run(client, code):
    """Everything that came of a cell, until its kernel is idle and has answered."""
    asked = client.execute(code)
    kinds = set()
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            break
        if kind in ("execute_result", "display_data"):
            kinds.update(content["data"])
        elif kind in ("stream", "error"):
            kinds.add(kind)
    while client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != asked:
        pass
    return sorted(kinds)


def cold(code):
    """From nothing to the first result, and to what is between."""
    begin = time.perf_counter()
    manager = KernelManager()
    manager.start_kernel()
    started = time.perf_counter()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    ready = time.perf_counter()
    kinds = run(client, code)
    end = time.perf_counter()
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    parts = [started - begin, ready - started, end - ready]
    return {"kinds": kinds, "seconds": end - begin, "parts": parts}


manager, client = start_new_kernel()
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "cold" in request:
        answer = cold(request["cold"])
    else:
        begin = time.perf_counter()
        kinds = run(client, request["code"])
        answer = {"kinds": kinds, "seconds": time.perf_counter() - begin}
    print(json.dumps(answer), flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
