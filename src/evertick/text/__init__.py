"""Text helpers: redaction, suggestions, sizes, error lines, log levels."""
