"""What stops while a part is away: the table of docs/reliability.md, as a test on a genuine cluster tries it.

`test_what_stops_is_said_as_it_is_tried` holds the page to these rows, `test_what_stops_while_a_part_is_away` the program.
"""

from dataclasses import dataclass
from typing import Final

START: Final = "start"
WAIT: Final = "wait"
REFUSED: Final = "refused"


@dataclass(frozen=True)
class Outage:
    """A part that is away.

    Attributes:
        id: of its test.
        part: its row's first cell.
        default: what becomes of new pods without devices under `default-scheduler`.
        ours: and under the scheduler names that Partage's kube-scheduler places.
        devices: what becomes of new pods with devices.
        test: the test of the row.
    """

    id: str
    part: str
    default: str = START
    ours: str = START
    devices: str = START
    test: str = "test_what_stops_while_a_part_is_away"


OUTAGES: Final = (
    Outage("webhook", "Webhook", devices=REFUSED),
    Outage("webhook-of-two", "Webhook, one of two"),
    Outage("agent", "Agent of a node", devices=WAIT),
    Outage("default-scheduler", "The cluster's own kube-scheduler", default=WAIT),
    Outage("kube-scheduler", "Partage's kube-scheduler", ours=WAIT, devices=WAIT),
    Outage("kube-scheduler-of-two", "Partage's kube-scheduler, one of two"),
    Outage("controllers", "Controllers (`--no-controllers`)"),
    Outage("service", "Scheduler service, with the extender", ours=WAIT, devices=WAIT),
    Outage(
        "service-managed",
        "Scheduler service, with the extender and `managedResources`",
        devices=WAIT,
    ),
    Outage("service-of-two", "Scheduler service, with the extender, the leader of two"),
    Outage(
        "engine",
        "Scheduler service, with the plugin (the default)",
        devices=WAIT,
        test="test_without_the_engine_plain_pods_go_on_and_the_others_come_later",
    ),
)
