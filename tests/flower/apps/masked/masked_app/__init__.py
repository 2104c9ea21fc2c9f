"""Secure aggregation of the updates, and cohorts by profiles."""
