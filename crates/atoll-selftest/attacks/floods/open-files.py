# tried: 200 open files where 128 are allowed, after raising the limit
# wall: a hard limit set by the monitor; raising it takes CAP_SYS_RESOURCE of the host
# limits: open_files=128
# control: looser open_files=512
import resource
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
except (ValueError, OSError):
    pass
held = []
try:
    while len(held) < 200:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    report(False, f"{len(held)} files, then {errno.errorcode[error.errno]}")
report(True, f"{len(held)} files")
