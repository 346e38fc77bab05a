"""`python -m evertick` is the command `evertick`."""

from evertick.cli import main

if __name__ == "__main__":
    main()
