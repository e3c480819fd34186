"""What is fuzzed, one module a part; PARTS in table.py lists them."""
