"""The local API: HTTP in front of one engine process, in the dialects of its clients."""
