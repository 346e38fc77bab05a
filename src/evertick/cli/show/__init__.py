"""What commands print: tables, words, pictures, progress."""
