# tried: reads a file of another sandbox of the same template
# wall: a disk of its own for each sandbox
# control: neighbour
with open(TARGET["n_file"]) as file:
    report(True, file.read())
