"""RPC workers as their callers see them: addresses, and whether what listens there can be used."""
