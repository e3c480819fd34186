"""The engine process as its callers see it: protocol, child process, clients."""
