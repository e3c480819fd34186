"""What the scripts that measure by the clock share: texts, the engine in one process, figures."""

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # the template of the embedded pair
