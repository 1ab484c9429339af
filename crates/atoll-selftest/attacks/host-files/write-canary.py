# tried: opens a file of the host for writing
# wall: a mount namespace whose root is the template and nothing else
# control: room
os.close(os.open(TARGET["scratch"], os.O_WRONLY))
report(True, "opened for writing")
