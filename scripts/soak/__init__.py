"""Hours in the life of a server: what `scripts/soak.py` and its test share."""
