# tried: {variant} through the agent's own port, without its token
# wall: the agent takes orders only with a token of 256 random bits that is on the host
# user: user
# target: token=0000000000000000
# control: inside token=$token
import http.client
method, path, body, kind = {
    "new-token": ("POST", "/init", b"{}", "application/json"),
    "files-of-root": ("GET", "/files?path=/etc/shadow&username=root", None, None),
    "commands": ("POST", "/process.Process/List", b"{}", "application/json"),
    "directories": ("POST", "/filesystem.Filesystem/ListDir", b'{"path": "/root"}', "application/json"),
    "metrics": ("GET", "/metrics", None, None),
}[TARGET["variant"]]
headers = {"X-Access-Token": TARGET["token"], "Authorization": "Basic cm9vdDo="}
if kind:
    headers["Content-Type"] = kind
connection = http.client.HTTPConnection("127.0.0.1", 49983, timeout=10)
connection.request(method, path, body=body, headers=headers)
answer = connection.getresponse()
report(answer.status < 300, f"status {answer.status}")
