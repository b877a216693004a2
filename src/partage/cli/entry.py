"""Entry point of the program `partage`. Ctrl-C ends it without a message until a command has been loaded."""

import signal


def main() -> None:
    """Run the typed command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from partage.cli.main import main as command  # noqa: PLC0415 # loading it takes a while

    command()


if __name__ == "__main__":
    main()
