"""Definitions in code: tasks, options, declarations, settings. They are checked where they are written."""
