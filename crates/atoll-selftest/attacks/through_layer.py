# Uses what a hostile layer put at a path: writes through it, or looks whose PID 1 it is.
if TARGET["guest"]:
    with open(TARGET["aim"], "rb") as guest:
        head = guest.read(64)
    report(b"the attacker's" in head, repr(head[:24]))
with open(TARGET["aim"], "w") as file:
    file.write("owned\n")
report(False, "written, and the host is as before")
