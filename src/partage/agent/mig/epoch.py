"""Which run of the driver this is: instances outlive neither a boot nor a reload of the driver.

The kernel names each boot. A reload makes a new directory for the module in sysfs, and directories
there are numbered as they are made, so its number tells one load from the next.

Source: Linux, `random(4)` on boot_id and sysfs; not run on hardware.
"""

from pathlib import Path

from partage.model.errors import InvalidDocument


def read_epoch(root: Path = Path("/")) -> str:
    """Name of this run of the driver; another one after every boot and every reload.

    Raises:
        InvalidDocument: the driver is not loaded.
    """
    boot = root / "proc/sys/kernel/random/boot_id"
    module = root / "sys/module/nvidia"
    try:
        return f"{boot.read_text('ascii').strip()}/{module.stat().st_ino}"
    except OSError as error:
        raise InvalidDocument(
            f"{error.filename}: {error.strerror or error}; is the driver loaded?"
        ) from None
