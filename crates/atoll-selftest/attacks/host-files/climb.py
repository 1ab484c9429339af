# tried: climbs above the root with `..` and through links that point above it
# wall: the root of the mount namespace has nothing above it
# control: room
link = "/tmp/climb"
os.symlink("../" * 40 + TARGET["file"].lstrip("/"), link)
try:
    with open(link) as file:
        report(True, file.read().strip())
finally:
    os.unlink(link)
