"""Small texts: what is shown, and what is hidden."""
