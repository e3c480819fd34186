"""Checks of the kernels (specllama/llama/native) under sanitizers, and under an emulator."""
