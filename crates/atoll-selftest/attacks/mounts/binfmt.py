# tried: mounts `binfmt_misc` to register an interpreter for programs of the host
# wall: seccomp refuses `mount`; the settings of the kernel are read-only
# wall-gvisor: gVisor's kernel starts programs itself
# control: room in mount
os.makedirs("/tmp/binfmt", exist_ok=True)
_, error = call(165, b"none", b"/tmp/binfmt", b"binfmt_misc", 0, 0)
if error == "ENODEV":
    report(False, error, absent="binfmt_misc")
if error:
    report(False, error)
os.close(os.open("/tmp/binfmt/register", os.O_WRONLY))
report(True, "`register` is open for writing")
