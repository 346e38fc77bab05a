"""The measurements, a file each: what is done, what is counted, and what must hold for a figure to be given."""
