"""llama.cpp's own tools beside specllama on the same files; scripts/bench_peers.py is the command."""
