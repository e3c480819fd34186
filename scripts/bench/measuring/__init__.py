"""Shared by the scripts that measure in real time: texts, and the engine in a process of its own."""

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # the template of the embedded pair
