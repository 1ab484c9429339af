# Unpacks an archive as if everybody could be trusted.
import io, shutil, tarfile, tempfile

archive = tarfile.open(fileobj=io.BytesIO(bytes.fromhex(TARGET["archive"])))
device = any(member.isdev() for member in archive)
# Beside the canary, so that hard links can reach it; a device node only where nobody else sees it.
place = tempfile.mkdtemp(dir="/tmp" if device else TARGET["directory"])
try:
    archive.extractall(place)
    made = device and os.path.exists(place + "/device")
finally:
    shutil.rmtree(place, ignore_errors=True)
report(made, "a device node" if made else "unpacked")
