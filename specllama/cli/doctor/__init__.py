"""`specllama doctor`."""
