# tried: a file of 48 MiB where the disk has 32
# wall: the disk is an image of its own size
# limits: disk_mib=32
# control: looser disk_mib=128
block = os.urandom(1 << 20)
written = 0
with open("/home/flood", "wb", 0) as file:
    try:
        while written < 48:
            file.write(block)
            written += 1
        os.fsync(file.fileno())
    except OSError as error:
        report(False, f"{written} MiB, then {errno.errorcode[error.errno]}")
report(True, f"{written} MiB")
