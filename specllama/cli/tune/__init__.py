"""`specllama tune`."""
