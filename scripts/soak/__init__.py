"""Hours in the life of a server: what `python -m scripts.soak` and its test share."""
