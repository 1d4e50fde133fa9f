"""The live view. `snapshot` asks the API, `render` draws a snapshot as a pure function, `screen` keeps it up.

feed.py (a thread asks) -> snapshot.py (values) -> lists.py (what is shown) -> panes.py (lines of cells.py) ->
render.py (the picture) | plain.py (lines without a screen) -> screen.py; keys go through view.py
"""
