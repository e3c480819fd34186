"""RPC workers as seen by their clients: addresses, and a check whether a worker can be used."""
