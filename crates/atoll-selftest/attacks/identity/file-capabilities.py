# tried: gives a program CAP_SYS_ADMIN by an attribute of its file, and runs it
# wall: a program cannot have what is not in the bounding set
# wall-gvisor: gVisor ignores capabilities of files
# control: room
import shutil, struct, subprocess
shutil.copy("/usr/bin/cat", "/tmp/capable")
os.chmod("/tmp/capable", 0o755)
# Version 2, effective; permitted: bit 21.
os.setxattr("/tmp/capable", "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0))
text = subprocess.run(["/tmp/capable", "/proc/self/status"], capture_output=True, text=True, user=1000).stdout
effective = next((line.split()[1] for line in text.splitlines() if line.startswith("CapEff")), "0")
report(int(effective, 16) & 1 << 21, f"effective set {effective}")
