# Sets a trap for a host that handles files of a sandbox, or walks into the same trap.
import shutil, subprocess

TRAP = "/home/trap"
KIND, READS = TARGET["kind"], TARGET["use"] == "read"
if KIND == "link":
    os.symlink(TARGET["file"] if READS else TARGET["scratch"], TRAP)
elif KIND == "directory":
    os.symlink(TARGET["directory"], TRAP)
else:
    TRAP = TRAP if TARGET["step"] == "plant" else "/tmp/trap"
    shutil.copy("/usr/bin/id", TRAP)
    os.chown(TRAP, 0, 0)
    os.chmod(TRAP, 0o4755)
if TARGET["step"] == "plant":
    # So that a link does not fail for leading nowhere, inside of the sandbox.
    os.makedirs(TARGET["directory"], exist_ok=True)
    report(True, "set")

if KIND == "setuid":
    uid = subprocess.run([TRAP, "-u"], user=65534, group=65534, capture_output=True, text=True).stdout.strip()
    report(uid == "0", f"it ran as user {uid}")
if READS:
    with open(TRAP) as file:
        report(True, file.read().strip())
with open(TRAP + "/owned" if KIND == "directory" else TRAP, "w") as file:
    file.write("owned\n")
report(False, "written")
