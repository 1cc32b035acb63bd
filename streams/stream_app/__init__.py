"""The stream-app: keyed state machines on Faust; the one place that imports it.

Its first agent keeps usage totals per org. Run as `python -m streams.stream_app`.
"""
