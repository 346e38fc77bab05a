"""The engine: a few loops over one runner, which see the store and the drivers only through their protocols."""
