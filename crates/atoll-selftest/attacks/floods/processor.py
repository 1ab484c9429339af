# tried: a whole processor where a twentieth is allowed
# wall: the quota of the cpu controller
# limits: cpu_millis=50
# control: looser cpu_millis=2000
import time
wall, own = time.monotonic(), time.process_time()
while time.monotonic() - wall < 2:
    pass
share = (time.process_time() - own) / (time.monotonic() - wall)
report(share > 0.15, f"{share:.2f} of a processor")
