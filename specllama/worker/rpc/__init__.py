"""RPC workers: attaching remote devices, and serving local ones."""
