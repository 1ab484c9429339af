# tried: lists a directory of the host
# wall: a mount namespace whose root is the template and nothing else
# control: room
report(True, os.listdir(TARGET["directory"]))
