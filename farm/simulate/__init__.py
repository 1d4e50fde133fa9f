"""A farm on a virtual clock: the very same verbs, driven by declared nodes, workloads and faults.

For what-if planning (`farm simulate`), for the benchmark of matching, and for tests.
"""
