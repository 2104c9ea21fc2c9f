"""Faster trainers for some models on some hardware, one folder each.

A folder is an accelerator: it offers ``trainer(problem, precision) -> Trainer | None``. Nothing
outside imports from inside one, so a folder that is deleted leaves everything working, more slowly.
"""
