"""The part of Ollama's API that programs need to chat with one model."""
