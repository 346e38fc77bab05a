"""Sources of the pictures in docs/images. Each module has one picture or one kind; `draw_pictures.py` writes them."""
