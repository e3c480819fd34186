"""Prefix states on disk: what is kept of evaluated text across restarts, one file a state.

state_file.py knows a state and the bytes of its file, record.py one in memory, directory.py the directory and
its locks, index.py which states fit a request, eviction.py what a state is worth; disk_store.py puts them
together, with the thread that writes. scopes.py says for which model and for whom a state may be used.
Nothing here knows llama.cpp, a server or a command: a state is bytes.
"""
