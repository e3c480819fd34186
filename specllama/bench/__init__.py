"""`specllama bench`: measures plain against speculative decoding with a model pair. Prints nothing."""
