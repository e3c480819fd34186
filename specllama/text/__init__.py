"""Text and token ids: detokenizing, grammars, chat templates, reasoning."""
