"""Trimming a draft in the engine process: texts are tokenised, the file is written and compared."""
