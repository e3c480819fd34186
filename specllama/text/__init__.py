"""Between token ids and text: detokenizing, grammars, chat templates, reasoning."""
