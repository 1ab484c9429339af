# tried: changes a program of the template, for another sandbox to run
# wall: layers are mounted read-only; changes go to the sandbox's own disk
# control: observer
PROGRAM = "/usr/bin/env"
if TARGET["step"] == "act":
    with open(PROGRAM + ".new", "w") as file:
        file.write("#!/bin/sh\necho owned\n")
    os.chmod(PROGRAM + ".new", 0o755)
    os.rename(PROGRAM + ".new", PROGRAM)
    report(True, "changed")
with open(PROGRAM, "rb") as file:
    head = file.read(24)
report(b"#!/bin/sh" in head, repr(head[:12]))
