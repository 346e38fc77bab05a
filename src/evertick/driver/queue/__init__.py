"""Runs dispatched to the workers of an external queue: Redis or NATS."""
