"""An EAGLE-3 head for the demo model: prompts, texts of the target, training, export, measurement."""
