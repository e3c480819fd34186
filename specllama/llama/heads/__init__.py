"""Trained heads over llama.cpp: the hidden states that a target gives out, and the contexts of heads."""
