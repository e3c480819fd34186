"""The client side of the engine process: protocol, child process, clients."""
