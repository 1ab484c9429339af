# tried: gives orders to its own agent with the token of another sandbox
# wall: a token for each sandbox
# target: token=$neighbour-token
# control: neighbour
import http.client
connection = http.client.HTTPConnection("127.0.0.1", 49983, timeout=10)
headers = {"X-Access-Token": TARGET["token"], "Content-Type": "application/json"}
connection.request("POST", "/process.Process/List", body=b"{}", headers=headers)
status = connection.getresponse().status
report(status < 300, f"status {status}")
