"""`tune`: measuring threads, decode costs and draft models."""
