"""What figures show; read by `hooks.py` when the first one is."""
