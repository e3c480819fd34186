"""`specllama bench --server`: measures an OpenAI-compatible server under concurrent requests."""
