"""The command with a wrong wall clock: `python skewed_instance.py SECONDS ARGUMENTS…`."""

import sys
from datetime import UTC, datetime, timedelta

from partage.cli.main import main
from partage.kube.clock import SystemClock


def wrong_by(seconds: float) -> None:
    """Set the wall clock of this process; its monotonic one goes on unchanged."""
    SystemClock.now = lambda _: datetime.now(UTC) + timedelta(seconds=seconds)  # type: ignore[method-assign] # a machine's fault


if __name__ == "__main__":
    wrong_by(float(sys.argv.pop(1)))
    main()
