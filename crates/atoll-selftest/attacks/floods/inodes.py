# tried: 2000 files where the disk has 1024 inodes
# wall: the disk is an image with a fixed number of inodes
# limits: inodes=1024
# skip-gvisor: a limit of files is refused there, out loud: files are kept in memory, which is limited
# control: looser inodes=8192
os.mkdir("/home/flood")
for number in range(2000):
    try:
        open(f"/home/flood/{number}", "w").close()
    except OSError as error:
        report(False, f"{number} files, then {errno.errorcode[error.errno]}")
report(True, "2000 files")
