"""A bridge of the kind that E2B's template has: FastAPI in front of a Jupyter
server, cells over its websocket, answers as lines of JSON. Both ends have
TCP_NODELAY, as asyncio sets it.

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
}

app = FastAPI()
state = {}


class Execute(BaseModel):
    code: str


def start():
    """A Jupyter server with one kernel."""
    state["server"] = subprocess.Popen(
        [sys.executable, "-m", "jupyter_server", "--ip=127.0.0.1", "--port=8888",
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
