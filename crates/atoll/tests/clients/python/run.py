"""`run.py sync|async [NAME]`: all cases for one flavour of E2B's Python SDK."""

import sys

import commands  # noqa: F401
import files  # noqa: F401
import links  # noqa: F401
import suite
import terminals  # noqa: F401
import watching  # noqa: F401

if __name__ == "__main__":
    suite.run(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
