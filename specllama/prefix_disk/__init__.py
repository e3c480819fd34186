"""Prefix states on disk: what is kept of evaluated text across restarts, one file a state.

state_file.py knows the bytes of a file, directory.py the directory and its locks, eviction.py what a state is
worth, lookup.py which states fit a request; disk_store.py puts them together, with the thread that writes.
model_key.py and scopes.py say for which model and for whom a state may be used. Nothing here knows llama.cpp,
a server or a command: a state is bytes.
"""
