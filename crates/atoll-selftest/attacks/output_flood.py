# 128 MiB of output. Inside, the host reads it; in the control room, a reader that keeps all of it.
import resource, subprocess
SIZE, BLOCK = 128 << 20, b"x" * 65536
if TARGET["tier"] != "none":
    written = 0
    while written < SIZE:
        written += os.write(1 + written // len(BLOCK) % 2, BLOCK)
    os.write(1, b"\n")
    report(True, f"{written >> 20} MiB")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
flood = subprocess.run(["head", "-c", str(SIZE), "/dev/zero"], stdout=subprocess.PIPE)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
report(grown > 48 << 10, f"{grown >> 10} MiB more memory")
