"""What users write: tasks, options, declarations, settings; checked where it is written."""
