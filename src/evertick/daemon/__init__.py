"""A node as a service under an init system: pidfile, log, signals, notifications, reloads."""
