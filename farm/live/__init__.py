"""The live view. `snapshot` asks the API, `render` draws a snapshot as a pure function, `screen` keeps it up.

feed.py (a thread asks) -> snapshot.py (values) -> render.py (picture) | plain.py (lines) -> screen.py
                                keys -> view.py (what is in focus) ---^
"""
