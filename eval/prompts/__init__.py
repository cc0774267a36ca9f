"""Prompts as data: named templates, and which of them a profile uses for a model kind and a benchmark."""
