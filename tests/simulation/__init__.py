"""A deterministic simulation of a whole farm: real decisions, a simulated world, one seed.

Real: the scheduler's loop, every SQL statement (SQLite in memory), the agent's lifecycle, journal, spool,
scribe and sender, staging and publishing on real files. Simulated: the clock, the network and the broker,
processes (they can be paused and killed between any two steps), renderers, people.
"""
