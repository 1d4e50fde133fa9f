"""Ridgeline: a render farm queue manager.

Three rings, imports point inward only: nouns (`model`), verbs (`flow`), loops (`control`); the edges
(`store`, `broker`, `http`, `cli`, `live`) touch the world. `docs/architecture.md` has the picture.
"""

__version__ = "0.1.0"
