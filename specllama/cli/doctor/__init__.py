"""`specllama doctor`: what this installation can use, and what to do where something is missing."""
