"""Calls the service once through everything it does; ends with `ok`."""

import asyncio

import httpx

from service import app, lifespan


async def main() -> None:
    transport = httpx.ASGITransport(app=app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://service/api/v1", timeout=60) as http:
        made = await http.post("/sandboxes", json={"agent_id": "ada", "task_id": "t1"})
        assert made.status_code == 201, made.text
        place = f"/sandboxes/{made.json()['id']}"

        async def execute(command: str, **more: int):
            return await http.post(f"{place}/execute", json={"command": command, **more})

        ran = await execute("echo out; echo err >&2; exit 3")
        assert ran.json() == {"stdout": "out\n", "stderr": "err\n", "exit_code": 3}, ran.text
        assert (await execute("sleep 60", timeout=1)).status_code == 408
        written = await http.put(f"{place}/files/home/user/a.txt", json={"text": "hello"})
        assert written.status_code == 204, written.text
        assert (await http.get(f"{place}/files/home/user/a.txt")).text == "hello"
        assert (await http.get(f"{place}/files/home/user/none")).status_code == 404
        assert (await http.get(place)).json()["status"] == "running"
        assert (await http.delete(place)).status_code == 204
        assert (await http.delete(place)).status_code == 204
        ended = (await http.get(place)).json()
        assert ended["status"] == "stopped" and ended["destroyed_at"], ended
        assert (await execute("true")).status_code == 409
        assert (await http.get("/sandboxes/none")).status_code == 404
        assert (await http.post("/sandboxes", json={"agent_id": ""})).status_code == 422
        unknown = await http.post("/sandboxes", json={"agent_id": "ada", "task_id": "t2", "template": "none"})
        assert unknown.status_code == 400, unknown.text
    print("ok")


asyncio.run(main())
