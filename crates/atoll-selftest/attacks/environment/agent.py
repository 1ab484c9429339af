# tried: reads the environment of PID 1
# wall: PID 1 has made itself undumpable, so that not even root inside may read it
# wall-gvisor: PID 1 was started with the path and the home of root, and nothing else
# target: pid=1
# control: inside pid=own
import time
pid = TARGET["pid"]
if pid == "own":
    os.environ["OWN"] = "variable"
    pid = child(lambda: os.execve("/bin/sleep", ["sleep", "20"], {"OWN": "variable"}))
    while b"OWN" not in open(f"/proc/{pid}/environ", "rb").read():
        time.sleep(0.005)
with open(f"/proc/{pid}/environ", "rb") as file:
    text = file.read().replace(b"\0", b" ").decode()
# These are the same in every sandbox and no secret.
rest = [word for word in text.split() if not word.startswith(("PATH=", "HOME=/root"))]
report(rest, text)
