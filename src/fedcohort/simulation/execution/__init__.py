"""One way to run a study (`runner`), and where its groups are trained: the executors.

An executor is called with a `Work` and returns whether all of it is finished: `here` in this
process, `Processes` in several, `OnRay` on a cluster.
"""
