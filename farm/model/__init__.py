"""Nouns: frozen dataclasses, enums and the table of legal moves. No I/O."""
