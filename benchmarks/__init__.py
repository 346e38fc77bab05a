"""Benchmarks of Evertick, beside a raw loop and other schedulers. README.md explains how to run them."""
