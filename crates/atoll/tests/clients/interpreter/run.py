"""What E2B's code-interpreter SDK for Python does with a sandbox that runs code.

    run.py sync|async [NAME …]

The server is found as SDKs find it. `INTERPRETER_TEMPLATE` is the template, and
`INTERPRETER_KIND` says what is in it: `tiny`, `slim` or `full`. Cases whose names
contain a NAME are run, or all. Prints `ok NAME` or `not ok NAME` for each, and
ends with an error if one did not hold.
"""

import os
import sys
import traceback

from boxes import open_box

import cells
import charts
import contexts
import languages
import results
import seeds

KINDS = ["tiny", "slim", "full"]


def main():
    way, *wanted = sys.argv[1:]
    kind = KINDS.index(os.environ["INTERPRETER_KIND"])
    failed = 0
    with open_box(way, os.environ["INTERPRETER_TEMPLATE"]) as box:
        for module in (cells, results, charts, contexts, languages, seeds):
            for work, least in module.cases:
                name = work.__name__.replace("_", " ")
                if KINDS.index(least) > kind or wanted and not any(part in name for part in wanted):
                    continue
                try:
                    work(box)
                except BaseException:
                    failed += 1
                    traceback.print_exc()
                    print(f"not ok {name}", flush=True)
                else:
                    print(f"ok {name}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
