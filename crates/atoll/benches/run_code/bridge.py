"""A bridge of the kind that E2B's template has: FastAPI in front of a Jupyter
server, cells over its websocket, answers as lines of JSON. TCP_NODELAY is set
everywhere: by asyncio here, and by hand in the Jupyter server, whose answers
would otherwise wait 40 ms for an acknowledgement.

It is a baseline for a benchmark, not a server for anybody.
"""

import json
import os
import subprocess
import sys
import time
import uuid

import httpx
import uvicorn
import websockets
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

JUPYTER = "http://127.0.0.1:8888"
PORT = 3000
KEYS = {
    "text/plain": "text",
    "text/html": "html",
    "image/png": "png",
    "application/json": "json",
    "e2b/data": "data",
    "e2b/chart": "chart",
}

# A Jupyter server whose connections do not wait. Tornado switches the delay on
# again after each request, and with it for the websocket that comes of one.
SERVER = """
from tornado import iostream
make, set_nodelay = iostream.IOStream.__init__, iostream.IOStream.set_nodelay
def make_without_delay(self, *arguments, **options):
    make(self, *arguments, **options)
    set_nodelay(self, True)
iostream.IOStream.__init__ = make_without_delay
iostream.IOStream.set_nodelay = lambda self, value: set_nodelay(self, True)
from jupyter_server.serverapp import main
main()
"""

app = FastAPI()
state = {}


class Execute(BaseModel):
    code: str


def start():
    """A Jupyter server with one kernel."""
    state["server"] = subprocess.Popen(
        [sys.executable, "-c", SERVER, "--ip=127.0.0.1", "--port=8888",
         "--ServerApp.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True",
         "--ZMQChannelsWebsocketConnection.iopub_msg_rate_limit=0",
         "--ZMQChannelsWebsocketConnection.iopub_data_rate_limit=0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = httpx.post(f"{JUPYTER}/api/kernels", json={"name": "python3"}, timeout=30)
            state["kernel"] = answer.raise_for_status().json()["id"]
            return
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


async def channel():
    if "channel" not in state:
        url = f"{JUPYTER.replace('http', 'ws')}/api/kernels/{state['kernel']}/channels"
        state["channel"] = await websockets.connect(url, max_size=None)
    return state["channel"]


@app.get("/health")
async def health():
    return "OK"


@app.post("/execute")
async def execute(request: Execute):
    asked = str(uuid.uuid4())
    message = {
        "header": {"msg_id": asked, "username": "", "session": asked, "msg_type": "execute_request", "version": "5.3"},
        "parent_header": {}, "metadata": {}, "channel": "shell",
        "content": {"code": request.code, "silent": False, "store_history": True,
                    "user_expressions": {}, "allow_stdin": False},
    }

    async def lines():
        socket = await channel()
        await socket.send(json.dumps(message))
        while True:
            heard = json.loads(await socket.recv())
            if heard["parent_header"].get("msg_id") != asked:
                continue
            kind, content = heard["msg_type"], heard["content"]
            if kind == "execute_input":
                yield json.dumps({"type": "number_of_executions", "execution_count": content["execution_count"]}) + "\n"
            elif kind == "stream":
                yield json.dumps({"type": content["name"], "text": content["text"], "timestamp": heard["header"]["date"]}) + "\n"
            elif kind in ("execute_result", "display_data"):
                result = {KEYS[name]: value for name, value in content["data"].items() if name in KEYS}
                yield json.dumps({"type": "result", "is_main_result": kind == "execute_result", **result}) + "\n"
            elif kind == "error":
                yield json.dumps({"type": "error", "name": content["ename"], "value": content["evalue"],
                                  "traceback": "\n".join(content["traceback"])}) + "\n"
            elif kind == "status" and content["execution_state"] == "idle":
                yield json.dumps({"type": "end_of_execution"}) + "\n"
                return

    return StreamingResponse(lines(), media_type="application/x-ndjson")


if __name__ == "__main__":
    os.chdir(os.path.expanduser("~"))
    start()
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
