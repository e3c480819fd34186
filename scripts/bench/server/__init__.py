"""specllama serve against llama.cpp's llama-server; python -m scripts.bench.server is the command."""
