"""Who takes part: how each is installed, set up and started. What its tasks look like is in
benchmarks.engines, which is imported in its own environment alone.
"""
