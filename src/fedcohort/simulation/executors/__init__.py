"""Where a study's groups are trained: in this process, in several, or on Ray.

An executor is called with a `Work` and returns whether all of it is finished.
"""
