"""The algorithm: sampling, drafting policies, verification, scheduling. Stdlib and numpy only; knows no files
and no llama.cpp.
"""
