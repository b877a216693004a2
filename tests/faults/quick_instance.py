"""`partage scheduler` with times that tests can wait for: a program of its own, to be killed.

python quick_instance.py KUBECONFIG PORT NAME [SOCKET]
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from partage.cli.logs import start_logging
from partage.daemon.options import ElectionOptions, SchedulerOptions
from partage.daemon.plugin import PluginOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.bindings import BindLimits
from partage.extender.service import ServiceSettings
from partage.kube.client import Client
from partage.kube.election import LeaseSettings
from partage.kube.loading import load_config
from partage.kube.retry import Backoff
from partage.kube.watch import WatchSettings

LIMITS = BindLimits(send=2.0, read=1.0, lock=1.0, pause=0.02, late=1.0)
OPTIONS = SchedulerOptions(
    election=ElectionOptions("default", times=LeaseSettings(4, deadline=2.7, retry=0.3)),
    watches=WatchSettings(backoff=Backoff(base=0.02, cap=0.2)),
    service=ServiceSettings(LIMITS, hold=1.5),
    learning=None,
    tick=0.05,
    audit=0.3,
)


async def main(kubeconfig: str, port: str, name: str, socket: str = "") -> None:
    """Serve until SIGTERM; at a socket, for kube-scheduler's plugin."""
    options = replace(OPTIONS, identity=name, port=int(port))
    if socket:
        options = replace(options, plugin=PluginOptions(Path(socket)))
    start_logging("json", "info")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = load_config(os.environ, kubeconfig=Path(kubeconfig), context=None)
    async with Client(config) as client:
        await SchedulerDaemon(client, options).run(stop)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
