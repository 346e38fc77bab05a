"""The measurements, one file each: the work, the metrics, and the checks that must hold for a sample to count."""
