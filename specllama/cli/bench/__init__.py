"""`specllama bench`."""
