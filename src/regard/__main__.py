"""The program: the command `regard`, and `python -m regard`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run a command; Ctrl-C prints no traceback, also while the modules of the command line are imported."""
    try:
        from regard import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT


if __name__ == "__main__":
    main()
