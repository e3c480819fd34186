"""The algorithm: choosing, verifying, planning, rounds. Stdlib and numpy only; knows no files and no
llama.cpp.
"""
