"""Prefix states on disk: what is kept of evaluated text across restarts, one file a state.

state_file.py knows a state and the bytes of its file, directory.py the directory, its locks and what a state
is worth, index.py which states fit a request; disk_store.py puts them together, with the thread that writes.
scopes.py says for which model and for whom a state may be used.
Nothing here knows llama.cpp, a server or a command: a state is bytes.
"""
