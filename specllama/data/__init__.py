"""The embedded pair, two GGUF files; CARD.md says what they are."""
