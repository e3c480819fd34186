"""HTTP beneath the dialects: access, bodies, connections, timeouts."""
