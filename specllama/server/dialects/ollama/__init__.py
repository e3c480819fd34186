"""The part of Ollama's API that clients need to chat with a model."""
