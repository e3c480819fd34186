"""What the scripts that make model files share: corpus, training, export, llama.cpp to try them."""
