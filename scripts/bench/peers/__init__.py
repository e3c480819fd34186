"""specllama against llama.cpp's own tools on the same files; python -m scripts.bench.peers is the command."""
