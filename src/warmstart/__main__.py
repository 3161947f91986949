"""`python -m warmstart`: the command line where no script is installed."""

from warmstart.cli import main

main()
