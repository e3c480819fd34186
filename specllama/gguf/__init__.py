"""Reading and checking GGUF files without llama.cpp."""
