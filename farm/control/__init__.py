"""Loops: load, decide (a verb of `farm.flow`), save, send. No rules of their own."""
