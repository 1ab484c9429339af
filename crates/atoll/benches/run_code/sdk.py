"""E2B's own SDK, unmodified, against the same sandbox; it times itself.

One JSON object per line comes in, one goes out, as for the other baselines.
"""

import json
import sys
import time

from e2b_code_interpreter import Sandbox

sandbox = Sandbox.connect(sys.argv[1])
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    code = json.loads(line)["code"]
    begin = time.perf_counter()
    execution = sandbox.run_code(code)
    seconds = time.perf_counter() - begin
    kinds = sorted({name for result in execution.results for name in result.formats()})
    kinds += ["stream"] if execution.logs.stdout else []
    kinds += ["error"] if execution.error else []
    print(json.dumps({"kinds": kinds, "seconds": seconds}), flush=True)
