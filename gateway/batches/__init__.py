"""Batches and files: stored on the log, run by gateways in the background, item by item."""
