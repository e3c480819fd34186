"""Model files: what they need of memory, where they are."""
