# tried: leaves its root by the classic double `chroot`, which root inside may call
# wall: the root was entered by `pivot_root`: beyond a chroot there is only the sandbox again
# control: room
os.makedirs("/tmp/jail", exist_ok=True)
os.chroot("/tmp/jail")
for _ in range(64):
    os.chdir("..")
os.chroot(".")
with open(TARGET["outside"]) as file:
    report(True, file.read().strip())
