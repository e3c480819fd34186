"""The Python API. Its names are imported from `specllama`: LLM, AsyncLLM, RequestOutput …"""
