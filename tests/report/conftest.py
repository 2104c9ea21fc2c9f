from small_stores import copy_runs, store, varied_store

__all__ = ["copy_runs", "store", "varied_store"]
