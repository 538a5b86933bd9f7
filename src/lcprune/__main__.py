"""`python -m lcprune` is the command line."""

import sys

from lcprune.cli import main

if __name__ == "__main__":
    sys.exit(main())
