"""`specllama launch`: a client with its settings for a server that is found or started."""
