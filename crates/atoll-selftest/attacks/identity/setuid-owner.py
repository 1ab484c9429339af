# tried: gives a file to root of the host, as a set-user-id program
# wall: owners are translated by the id-mapped disk; root inside cannot name users of the host
# wall-gvisor: owners exist in gVisor's kernel alone
# target: uid=1879048192
# control: inside uid=1234
path = "/tmp/owned-by-host"
open(path, "w").close()
try:
    # The host's number of this sandbox's own root, or any other beyond the 65536.
    os.chown(path, int(TARGET["uid"]), 0)
    is_foreign = int(TARGET["uid"]) >= 65536
    (own_kernel if is_foreign else report)(True, f"owner {os.stat(path).st_uid}")
finally:
    os.unlink(path)
