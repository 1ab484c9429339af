"""A back end that gives every agent a sandbox, with E2B's SDK against Atoll.

    pip install --requirement requirements.txt
    eval "$(atoll env)"                      # E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL
    uvicorn service:app

Commands of agents run in sandboxes; this process starts nothing itself. Rows are
kept in SQLite, in memory unless `DATABASE` names a file.
"""

import asyncio
import contextlib
import os
import sqlite3
from datetime import datetime, timedelta, timezone

from e2b import CommandExitException, NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, Field
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential

COMMAND_TIMEOUT = int(os.environ.get("E2B_TIMEOUT", "300"))
STALE_AFTER = timedelta(hours=24)
CLEAN_UP_EVERY = 3600.0


class NewSandbox(BaseModel):
    agent_id: str = Field(min_length=1, max_length=128)
    task_id: str = Field(min_length=1, max_length=128)
    template: str = "base"


class Sandbox(BaseModel):
    id: str
    agent_id: str
    task_id: str
    status: str
    created_at: datetime
    destroyed_at: datetime | None = None


class NewCommand(BaseModel):
    command: str = Field(min_length=1, max_length=100_000)
    timeout: int = Field(default=COMMAND_TIMEOUT, ge=1, le=3600)


class Execution(BaseModel):
    stdout: str
    stderr: str
    exit_code: int


def now() -> datetime:
    return datetime.now(timezone.utc)


def is_transient(error: BaseException) -> bool:
    """What may be different the next time, and has certainly changed nothing."""
    return isinstance(error, (ConnectionError, TimeoutException))


class SandboxService:
    def __init__(self, database: str) -> None:
        self.rows = sqlite3.connect(database, check_same_thread=False)
        self.rows.row_factory = sqlite3.Row
        self.rows.execute(
            "CREATE TABLE IF NOT EXISTS sandboxes (id TEXT PRIMARY KEY, agent_id TEXT NOT NULL, task_id TEXT NOT NULL,"
            " status TEXT NOT NULL, created_at TEXT NOT NULL, destroyed_at TEXT)")

    def row(self, sandbox_id: str) -> Sandbox:
        found = self.rows.execute("SELECT * FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
        if found is None:
            raise HTTPException(404, "there is no such sandbox")
        return Sandbox(**dict(found))

    def change(self, sandbox_id: str, status: str) -> None:
        destroyed = now().isoformat() if status in ("stopped", "error") else None
        with self.rows:
            self.rows.execute(
                "UPDATE sandboxes SET status = ?, destroyed_at = ? WHERE id = ?", (status, destroyed, sandbox_id))

    async def create(self, wanted: NewSandbox) -> Sandbox:
        metadata = {"agent_id": wanted.agent_id, "task_id": wanted.task_id}
        attempts = AsyncRetrying(
            stop=stop_after_attempt(3), wait=wait_exponential(min=1, max=10),
            retry=retry_if_exception(is_transient), reraise=True)
        async for attempt in attempts:
            with attempt:
                made = await AsyncSandbox.create(wanted.template, metadata=metadata, timeout=3600)
        row = Sandbox(id=made.sandbox_id, status="running", created_at=now(), **metadata)
        with self.rows:
            self.rows.execute(
                "INSERT INTO sandboxes VALUES (?, ?, ?, ?, ?, NULL)",
                (row.id, row.agent_id, row.task_id, row.status, row.created_at.isoformat()))
        return row

    async def running(self, sandbox_id: str) -> AsyncSandbox:
        if self.row(sandbox_id).status != "running":
            raise HTTPException(409, "the sandbox has ended")
        try:
            return await AsyncSandbox.connect(sandbox_id)
        except NotFoundException:
            self.change(sandbox_id, "error")
            raise HTTPException(409, "the sandbox has ended") from None

    async def execute(self, sandbox_id: str, wanted: NewCommand) -> Execution:
        sandbox = await self.running(sandbox_id)
        try:
            done = await sandbox.commands.run(wanted.command, timeout=wanted.timeout)
        except CommandExitException as failed:
            done = failed
        except TimeoutException:
            raise HTTPException(408, f"the command ran longer than {wanted.timeout} s and was ended") from None
        return Execution(stdout=done.stdout, stderr=done.stderr, exit_code=done.exit_code)

    async def status(self, sandbox_id: str) -> Sandbox:
        row = self.row(sandbox_id)
        if row.status == "running":
            with contextlib.suppress(HTTPException):
                await self.running(sandbox_id)
        return self.row(sandbox_id)

    async def destroy(self, sandbox_id: str) -> None:
        if self.row(sandbox_id).status == "running":
            await AsyncSandbox.kill(sandbox_id)
            self.change(sandbox_id, "stopped")

    async def clean_up(self) -> None:
        """Ends what nobody ended for a day."""
        while True:
            oldest = (now() - STALE_AFTER).isoformat()
            stale = self.rows.execute(
                "SELECT id FROM sandboxes WHERE status = 'running' AND created_at < ?", (oldest,)).fetchall()
            for row in stale:
                with contextlib.suppress(SandboxException):
                    await self.destroy(row["id"])
            await asyncio.sleep(CLEAN_UP_EVERY)


service = SandboxService(os.environ.get("DATABASE", ":memory:"))


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI):
    cleaning = asyncio.create_task(service.clean_up())
    yield
    cleaning.cancel()


app = FastAPI(title="Sandboxes for agents", lifespan=lifespan)


@app.post("/api/v1/sandboxes", status_code=201)
async def create(wanted: NewSandbox) -> Sandbox:
    try:
        return await service.create(wanted)
    except SandboxException as error:
        # The SDK has no class of its own for a template that is not there.
        is_wrong = str(error).startswith(("400", "404"))
        raise HTTPException(400 if is_wrong else 503, str(error)) from None


@app.get("/api/v1/sandboxes/{sandbox_id}")
async def get(sandbox_id: str) -> Sandbox:
    return await service.status(sandbox_id)


@app.post("/api/v1/sandboxes/{sandbox_id}/execute")
async def execute(sandbox_id: str, wanted: NewCommand) -> Execution:
    return await service.execute(sandbox_id, wanted)


@app.put("/api/v1/sandboxes/{sandbox_id}/files/{path:path}", status_code=204)
async def upload(sandbox_id: str, path: str, content: dict[str, str]) -> Response:
    sandbox = await service.running(sandbox_id)
    await sandbox.files.write(f"/{path}", content["text"])
    return Response(status_code=204)


@app.get("/api/v1/sandboxes/{sandbox_id}/files/{path:path}")
async def download(sandbox_id: str, path: str) -> Response:
    sandbox = await service.running(sandbox_id)
    try:
        return Response(await sandbox.files.read(f"/{path}"), media_type="text/plain")
    except NotFoundException:
        raise HTTPException(404, "there is no such file") from None


@app.delete("/api/v1/sandboxes/{sandbox_id}", status_code=204)
async def destroy(sandbox_id: str) -> Response:
    await service.destroy(sandbox_id)
    return Response(status_code=204)
