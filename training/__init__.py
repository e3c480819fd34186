"""Training and writing of small model files: corpus, training, export, padding, llama.cpp to try them."""
