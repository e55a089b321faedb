"""``python -m smore.cli``: the command ``smore``."""

from smore.cli.app import main

main()
