# tried: reads a file of the host by its path
# wall: a mount namespace whose root is the template and nothing else
# control: room
with open(TARGET["file"]) as file:
    report(True, file.read().strip())
