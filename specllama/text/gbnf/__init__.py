"""GBNF, the grammars of llama.cpp: read as its parser reads them, written as llguidance's Lark."""
