# tried: takes away the randomness of addresses from a set-user-id program
# wall: the kernel resets the personality when a program gains rights
# wall-gvisor: gVisor's kernel refuses other personalities
# skip-gvisor: its kernel knows one personality only
# user: user
# target: program=sudo
# control: inside program=env
import subprocess
libc.personality(0x0040000)  # ADDR_NO_RANDOMIZE
got = subprocess.run([TARGET["program"], "cat", "/proc/self/personality"], capture_output=True, text=True).stdout.strip()
report(got and int(got, 16) & 0x40000, f"personality {got}")
