"""Measured comparisons: `millstream bench NAME`.

Each bench starts a platform of its own in a scratch folder, and its peers from folders of their
own; nothing is installed into the product's environment. Load comes from processes apart
(`python -m infra.bench.load`), which report their own lag: a run in which they are the bottleneck
is invalid.
"""
