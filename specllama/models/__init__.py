"""Model files: names, resolving and downloading them, and the memory that they need."""
