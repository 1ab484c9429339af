"""E2B's own Python SDK, unmodified, on a server of yours.

    pip install e2b
    eval "$(atoll env)"
    python3 examples/quickstart.py
"""

from e2b import Sandbox

with Sandbox.create(timeout=60, metadata={"example": "quickstart"}) as sandbox:
    print(f"sandbox {sandbox.sandbox_id}")

    sandbox.files.write("numbers.txt", "\n".join(str(number) for number in range(1, 11)))
    total = sandbox.commands.run("awk '{ sum += $1 } END { print sum }' numbers.txt")
    print(f"the numbers add up to {total.stdout.strip()}")

    def show(line: str) -> None:
        print(f"  {line}", end="" if line.endswith("\n") else "\n")

    sandbox.commands.run("python3 -c 'import platform; print(\"Python\", platform.python_version())'", on_stdout=show)
    sandbox.commands.run("uname -sr; id", on_stdout=show)

    listed = Sandbox.list().next_items()
    print(f"sandboxes of this server: {len(listed)}")

print("the sandbox is gone")
