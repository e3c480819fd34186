"""specllama serve beside llama.cpp's llama-server; scripts/bench_server.py is the command."""
