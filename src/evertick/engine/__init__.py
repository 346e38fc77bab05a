"""The engine: loops over one runner, which use the store and the drivers only through their protocols."""
