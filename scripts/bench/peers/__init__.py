"""llama.cpp's own tools beside specllama on the same files; python -m scripts.bench.peers is the command."""
