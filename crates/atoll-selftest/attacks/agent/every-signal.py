# tried: sends PID 1 bursts of every signal but SIGTERM, by which root may end its own sandbox, and asks whether it still works
# wall: the kernel drops signals to the first process of a pid namespace that it has no handler for
# skip-gvisor: root may end its own sandbox there, and nothing else: see `neighbours.kill-all`
# alone:
# target: pid=1
# control: inside pid=own
import http.client, time
if TARGET["pid"] == "own":
    pid = child(lambda: time.sleep(30))
    os.kill(pid, 15)
    _, status = os.waitpid(pid, 0)
    report(os.WIFSIGNALED(status), f"ended by signal {os.WTERMSIG(status)}")
# In bursts: handlers that interrupt each other find mistakes that one alone does not.
for signal in 20 * sorted(set(range(1, 65)) - {15}):
    try:
        os.kill(1, signal)
    except OSError:
        pass
try:
    connection = http.client.HTTPConnection("127.0.0.1", 49983, timeout=10)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    report(False, f"it answers with {status}")
except OSError as error:
    report(True, f"it does not answer: {error}")
