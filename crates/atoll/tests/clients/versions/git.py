"""Git inside a sandbox, against a daemon that runs there."""

from e2b import Sandbox

with Sandbox.create(timeout=120) as sandbox:
    run = sandbox.commands.run
    run("git init --quiet --bare /home/user/served/project.git")
    daemon = "git daemon --reuseaddr --base-path=/home/user/served --export-all --enable=receive-pack --listen=127.0.0.1"
    run(daemon, background=True)
    run("until git ls-remote git://127.0.0.1/project.git; do sleep 0.1; done")
    run("git config --global user.name Ada && git config --global user.email ada@example.org")
    run("git clone --quiet git://127.0.0.1/project.git work")
    sandbox.files.write("work/file", "first")
    run("git add . && git commit --quiet -m first && git push --quiet origin HEAD:main", cwd="/home/user/work")
    run("git clone --quiet --branch main git://127.0.0.1/project.git copy")
    assert sandbox.files.read("copy/file") == "first"
    assert run("git log --format='%an %s'", cwd="/home/user/copy").stdout == "Ada first\n"
    print("ok git", flush=True)
