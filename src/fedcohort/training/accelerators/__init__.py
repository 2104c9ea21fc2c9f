"""Faster trainers for some models on some hardware, one folder each.

A folder is an accelerator: it offers ``takes(problem, precision) -> bool`` and
``trainer(problem, precision) -> Trainer``. Nothing outside imports from inside one, so a
folder that is deleted leaves everything working, more slowly.
"""
