"""The output of commands: tables, words, pictures, progress."""
