"""Verbs, in the order of a frame's way; pure functions, `now` and seeds are arguments.

submit -> classify -> match -> dispatch -> [a node runs it] -> report -> stats
"""
