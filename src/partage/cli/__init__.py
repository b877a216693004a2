"""The command line. Only this package reads environment, clock and files."""
