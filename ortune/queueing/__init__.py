"""Queues of requests: their latency, the rate that keeps a limit, batches, and cost. Everything here is computed.

Nothing is measured in this package. It takes durations of calls as plain numbers. The methods are described in
docs/queueing.md.
"""
