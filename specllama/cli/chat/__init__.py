"""`specllama chat`."""
