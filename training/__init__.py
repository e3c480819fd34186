"""Training and writing of small model files: corpus, training, export, padding, llama.cpp to try them."""

import scripts  # noqa: F401 - Ctrl-C, and the folder of llama.cpp
