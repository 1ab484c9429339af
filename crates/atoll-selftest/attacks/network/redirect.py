# tried: lets a public server redirect it to the metadata service
# wall: the firewall looks at every connection, whoever named its address
# control: room
import urllib.request
with urllib.request.urlopen(f"http://{TARGET['w_public']}/redirect", timeout=3) as answer:
    report("169.254" in answer.url, f"{answer.status} from {answer.url}")
