"""Every tool, called by a released MCP client for Python.

`tools.py CLIENT TRANSPORT`: the client is `mcp` (1.x or 2.x, whichever is
installed) or `fastmcp`, the transport `stdio` (`ATOLL_MCP` is the command) or
`http` (`ATOLL_URL`, `ATOLL_KEY`). One line per case that held.
"""

import asyncio
import contextlib
import json
import os
import shlex
import sys

TOOLS = [
    "run_code", "execute_command", "start_process", "read_process", "write_process",
    "stop_process", "read_file", "write_file", "list_files", "search_files",
    "install_packages", "create_sandbox", "list_sandboxes", "kill_sandbox", "preview_url",
]
TEMPLATE = os.environ["ATOLL_TEMPLATE"]


def held(name):
    print(f"ok {name}", flush=True)


def field(value, *names):
    for name in names:
        if hasattr(value, name):
            return getattr(value, name)
    raise AttributeError(f"{names} of {value!r}")


class Caller:
    """One way to call, whatever the client's names are."""

    def __init__(self, session):
        self.session = session

    async def tools(self):
        listed = await self.session.list_tools()
        return getattr(listed, "tools", listed)

    async def raw(self, name, arguments, **more):
        return await self.session.call_tool(name, arguments, **more)

    async def __call__(self, name, **arguments):
        result = await self.raw(name, arguments)
        failed = field(result, "is_error", "isError")
        assert not failed, result
        return field(result, "structured_content", "structuredContent")

    async def error(self, name, **arguments):
        result = await self.raw(name, arguments, **self.quiet())
        assert field(result, "is_error", "isError"), result
        error = result.meta["atoll/error"]
        assert error["cause"] and error["remediation"], error
        return error["code"]

    def quiet(self):
        return {}

    async def text_of(self, uri):
        read = await self.session.read_resource(uri)
        contents = getattr(read, "contents", read)
        return contents[0]


class FastCaller(Caller):
    def quiet(self):
        return {"raise_on_error": False}


@contextlib.asynccontextmanager
async def official(transport):
    import mcp

    command = shlex.split(os.environ.get("ATOLL_MCP", "false"))
    if hasattr(mcp, "Client"):
        if transport == "stdio":
            from mcp.client.stdio import StdioServerParameters, stdio_client

            where = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
        else:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            http = httpx2.AsyncClient(headers={"X-API-Key": os.environ["ATOLL_KEY"]}, timeout=60)
            where = streamable_http_client(os.environ["ATOLL_URL"], http_client=http)
        async with mcp.Client(where) as client:
            yield Caller(client)
        return
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    if transport == "stdio":
        opening = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ)))
    else:
        headers = {"Authorization": "Bearer " + os.environ["ATOLL_KEY"]}
        opening = streamablehttp_client(os.environ["ATOLL_URL"], headers=headers)
    async with opening as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        yield Caller(session)


@contextlib.asynccontextmanager
async def fast(transport):
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    if transport == "stdio":
        command = shlex.split(os.environ["ATOLL_MCP"])
        where = StdioTransport(command=command[0], args=command[1:], env=dict(os.environ))
    else:
        headers = {"X-API-Key": os.environ["ATOLL_KEY"]}
        where = StreamableHttpTransport(os.environ["ATOLL_URL"], headers=headers)
    async with Client(where) as client:
        yield FastCaller(client)


async def check_list(call):
    tools = await call.tools()
    assert [tool.name for tool in tools] == TOOLS, tools
    for tool in tools:
        assert field(tool, "output_schema", "outputSchema")["type"] == "object", tool
    hints = next(tool for tool in tools if tool.name == "read_file").annotations
    assert field(hints, "read_only_hint", "readOnlyHint") is True, hints
    held("list")


async def check_code(call):
    first = await call("run_code", code="x = 20\nprint('printed')")
    assert first["stdout"] == "printed\n" and first["success"], first
    second = await call("run_code", code="x + 22")
    assert [one["text"] for one in second["results"]] == ["42"], second
    failed = await call("run_code", code="1 / 0")
    assert failed["error"]["name"] == "ZeroDivisionError" and not failed["success"], failed
    shell = await call("run_code", code="echo $((6 * 7))", language="bash")
    assert shell["stdout"] == "42\n", shell
    assert await call.error("run_code", code="while True: pass", timeout=1) == "TIMEOUT"
    assert (await call("run_code", code="x"))["results"][0]["text"] == "20"
    assert await call.error("run_code", code=1) == "INVALID_ARGUMENTS"
    held("code")


PICTURE = """
import base64
from IPython.display import Image, display
display(Image(data=base64.b64decode(
    'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='),
    format='png'))
"""


async def check_images(call):
    made = await call("create_sandbox", template=TEMPLATE)
    result = await call.raw("run_code", {"code": PICTURE, "sandbox_id": made["sandbox_id"]})
    images = [one for one in result.content if one.type == "image"]
    assert len(images) == 1, result
    assert field(images[0], "mime_type", "mimeType") == "image/png", images
    structured = field(result, "structured_content", "structuredContent")
    uri = structured["results"][0]["image_uri"]
    again = await call.text_of(uri)
    assert again.blob == images[0].data, uri
    await call("write_file", path="/home/user/note.txt", content="a note", sandbox_id=made["sandbox_id"])
    note = await call.text_of(f"atoll://sandbox/{made['sandbox_id']}/files/home/user/note.txt")
    assert note.text == "a note", note
    await call("kill_sandbox", sandbox_id=made["sandbox_id"])
    held("images and resources")


async def check_commands(call):
    said = await call("execute_command", command="echo out; echo err >&2; exit 3")
    assert (said["stdout"], said["stderr"], said["exit_code"]) == ("out\n", "err\n", 3), said
    long = await call("execute_command", command="seq 1 100000")
    assert len(long["stdout"]) < 20000 and long["output_bytes"] == 588895, long["output_bytes"]
    assert long["stdout"].startswith("1\n2\n") and long["stdout"].endswith("\n100000\n")
    assert long["stdout_path"] in long["stdout"], long["stdout_path"]
    rest = await call("read_file", path=long["stdout_path"], offset=588889)
    assert rest["content"] == "100000\n"[1:] and "next_offset" not in rest, rest
    assert await call.error("execute_command", command="sleep 60", timeout=1) == "TIMEOUT"
    assert (await call("execute_command", command="pgrep -x sleep"))["exit_code"] == 1
    held("commands")


async def check_files(call):
    await call("write_file", path="/home/user/deep/a.py", content="def main():\n    pass  # é\n")
    read = await call("read_file", path="deep/a.py", length=25)
    assert read["content"] == "def main():\n    pass  # ", read
    rest = await call("read_file", path="deep/a.py", offset=read["next_offset"])
    assert rest["content"] == "é\n", rest
    await call("write_file", path="/home/user/deep/b.bin", content="/wD+", encoding="base64")
    binary = await call("read_file", path="/home/user/deep/b.bin")
    assert (binary["encoding"], binary["content"]) == ("base64", "/wD+"), binary
    listed = await call("list_files", path="/home/user/deep")
    assert [one["path"] for one in listed["entries"]] == ["/home/user/deep/a.py", "/home/user/deep/b.bin"]
    found = await call("search_files", pattern="def main", include="*.py")
    assert [(one["path"], one["line"]) for one in found["matches"]] == [("/home/user/deep/a.py", 1)], found
    named = await call("search_files", pattern="*.bin", mode="name")
    assert [one["path"] for one in named["matches"]] == ["/home/user/deep/b.bin"], named
    assert await call.error("read_file", path="/home/user/missing") == "FILE_NOT_FOUND"
    held("files")


async def check_processes(call):
    started = await call("start_process", command="python3 -u -c 'while True: print(input()[::-1])'")
    name = started["process_id"]
    said = await call("write_process", process_id=name, input="olleh\n", wait=20)
    assert said["output"] == "hello\n" and said["state"] == "running", said
    assert (await call("read_process", process_id=name, wait=0))["output"] == ""
    stopped = await call("stop_process", process_id=name)
    assert stopped["state"] == "ended", stopped
    assert await call.error("read_process", process_id="p999") == "PROCESS_NOT_FOUND"
    held("processes")


async def check_sandboxes(call):
    made = await call("create_sandbox", metadata={"purpose": "test"})
    listed = (await call("list_sandboxes"))["sandboxes"]
    mine = [one for one in listed if one["sandbox_id"] == made["sandbox_id"]]
    assert mine and mine[0]["metadata"]["purpose"] == "test" and mine[0]["is_of_this_session"], listed
    await call("start_process", command="cd /tmp && echo served > page && python3 -m http.server 8000",
               sandbox_id=made["sandbox_id"])
    address = await call("preview_url", port=8000, sandbox_id=made["sandbox_id"])
    assert await fetched(address["url"] + "page") == b"served\n", address
    await call("kill_sandbox", sandbox_id=made["sandbox_id"])
    assert await call.error("execute_command", command="true", sandbox_id=made["sandbox_id"]) == "SANDBOX_NOT_FOUND"
    assert await call.error("kill_sandbox", sandbox_id="../../etc") == "SANDBOX_NOT_FOUND"
    held("sandboxes and previews")


async def fetched(url):
    import urllib.request
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    # Names below `localhost` are this machine, wherever the resolver has not heard of that.
    request = urllib.request.Request(
        f"http://127.0.0.1:{parts.port}{parts.path}", headers={"Host": parts.netloc})
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read()
        except OSError:
            await asyncio.sleep(0.1)
    raise AssertionError(f"nobody answers at {url}")


async def check_packages(call):
    assert await call.error("install_packages", manager="pip", packages=["--evil"]) == "INVALID_ARGUMENTS"
    # Sandboxes of tests have no internet.
    code = await call.error("install_packages", manager="pip", packages=["left"], timeout=60)
    assert code in ("UNSUPPORTED", "TIMEOUT"), code
    held("packages")


async def check_progress(call):
    heard = []

    async def listen(progress, total, message):
        heard.append((progress, message))

    arguments = {"code": "import time\nprint('step one', flush=True)\ntime.sleep(3)"}
    named = "progress_handler" if isinstance(call, FastCaller) else "progress_callback"
    await call.raw("run_code", arguments, **{named: listen})
    assert heard and "step one" in [message for _, message in heard], heard
    held("progress")


async def check_aliases(call):
    ran = await call("executeCode", code="print('named')", language="python", sessionId="one", timeout=30000)
    assert ran["stdout"] == "named\n", ran
    same = await call("terminal", command="touch here && ls", sessionId="one")
    assert same["sandbox_id"] == ran["sandbox_id"] and "here" in same["stdout"], same
    await call("fileOperations", operation="upload", path="/home/user/up", content="up", sessionId="one")
    down = await call("fileOperations", operation="download", path="/home/user/up", sessionId="one")
    assert down["content"] == "up", down
    assert await call.error("executeCode", code="1", language="cobol") == "INVALID_ARGUMENTS"
    held("aliases")


CHECKS = [check_list, check_code, check_commands, check_files, check_processes, check_progress,
          check_sandboxes, check_images, check_packages, check_aliases]


async def main():
    client, transport, *names = sys.argv[1:]
    opening = fast(transport) if client == "fastmcp" else official(transport)
    async with opening as call:
        for check in CHECKS:
            if not names or any(name in check.__name__ for name in names):
                await check(call)


asyncio.run(main())
