"""The seam to llama.cpp: the only package that imports llama_cpp, and imported by worker alone.

Uses the low-level functions. Codes and null pointers become errors of specllama.errors. Knows nothing about
drafts, requests or text.
"""
