"""A node as a service: what a process does beside its node when an init system looks after it."""
