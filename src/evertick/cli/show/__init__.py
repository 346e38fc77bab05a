"""The output of commands: tables, text, heatmaps, progress."""
