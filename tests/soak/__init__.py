"""A soak test of `specllama serve`, which `python -m tests.soak` and tests/faults/test_soak.py run."""
