# tried: learns the name of the host
# wall: a uts namespace with the sandbox's own name
# control: room
found = os.uname().nodename
report(found == TARGET["hostname"], found)
