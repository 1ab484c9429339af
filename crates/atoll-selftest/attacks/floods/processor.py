# tried: a whole processor where a tenth is allowed
# wall: the quota of the cpu controller
# limits: cpu_millis=100
# control: looser cpu_millis=2000
import time
# Time that passes without a gap is time on a processor; what the kernel inside counts may be wrong.
start = last = time.monotonic()
ran = 0.0
while last - start < 2:
    now = time.monotonic()
    if now - last < 0.002:
        ran += now - last
    last = now
share = ran / (last - start)
report(share > 0.25, f"{share:.2f} of a processor")
