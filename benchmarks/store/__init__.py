"""Where measurements happen: a file, a database of a server of our own, or a broker."""
