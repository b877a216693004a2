"""NVIDIA's own driver answers with the library in force as it does without, down to the result of each function."""

import os
import subprocess
from pathlib import Path

import pytest
from genuine_driver import CUDA, NVML, Driver, drivers
from native_world import MIB, WAIT, World

genuine = pytest.mark.parametrize("driver", drivers())


def _has_device() -> bool:
    """Whether the kernel has the driver; the file alone says nothing, as the driver's library makes it."""
    try:
        os.close(os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    _has_device(),
    reason="there is a device: functions are not called blindly, and bench/gpu.py asks it",
)

APART = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **path)
{
    unsigned none = 0;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen(path[count - 1], RTLD_NOW), "cuInit");
    void *apart = dlmopen(LM_ID_NEWLM, path[count - 1], RTLD_NOW);
    int (*own)(unsigned) = (int (*)(unsigned))dlsym(apart, "cuInit");
    int first = init(none), second = own(none), closed = dlclose(apart);
    printf("%d %d %d %d %d\\n", first, own != init, second, closed, init(none));
    return 0;
}
"""


@genuine
@pytest.mark.parametrize(
    ("library", "begin"),
    [(CUDA, ""), (CUDA, "cuInit"), (NVML, ""), (NVML, "nvmlInit_v2")],
    ids=["driver", "driver, begun", "nvml", "nvml, begun"],
)
def test_every_function_answers_as_without_us(
    driver: Driver, library: str, begin: str, world: World
) -> None:
    """Results are the same before the driver was asked to begin and after it said that there is no device."""
    path = driver.path(library)
    plain = driver.ask(None, "sweep", path, begin)

    ours = driver.ask(world.tenant(memory=MIB), "sweep", path, begin)

    assert len(plain) > 100
    assert {name: ours[name] for name in plain if ours[name] != plain[name]} == {}


@genuine
def test_the_driver_s_own_objects_are_found(driver: Driver, world: World) -> None:
    """What it opens for itself it finds as before; the library adds itself and what the agent gave it."""
    tenant = world.tenant(memory=MIB)

    added = set(driver.ask(tenant, "objects", driver.path()))
    added -= set(driver.ask(None, "objects", driver.path()))

    assert str(tenant.library) in added
    assert {Path(one).parent for one in added} <= {tenant.folder, *tenant.folder.glob("card-*")}


@genuine
def test_a_process_may_fork_close_and_open_again(driver: Driver, world: World) -> None:
    """A child begins for itself; what was closed and is opened again elsewhere works."""
    plain = driver.ask(None, "lives", driver.path())

    assert driver.ask(world.tenant(memory=MIB), "lives", driver.path()) == plain


def test_a_driver_that_was_closed_can_be_opened_again(world: World) -> None:
    """What the library keeps of a driver is true however often a program opens it, and wherever it comes to lie then."""
    driver = Driver(world.build / "fake")

    told = driver.ask(world.tenant(memory=2**30), "lives", driver.path())

    assert told["first"] == told["closed"] == told["again"] == 0


@genuine
def test_a_namespace_of_its_own_does_no_harm(driver: Driver, world: World, tmp_path: Path) -> None:
    """A copy that `dlmopen` loads is not ours to cover (the agent sees it), and neither crashes the other."""
    source, made = tmp_path / "apart.c", tmp_path / "apart"
    source.write_text(APART)
    subprocess.run(["gcc", source, "-o", made, "-ldl"], check=True)
    told = [
        subprocess.run(
            [made, driver.path()],
            env=driver.environment(tenant),
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT,
        ).stdout
        for tenant in (None, world.tenant(memory=MIB))
    ]

    assert told[0] == told[1]
    assert told[0].split()[1] == "1"


@genuine
def test_limits_that_cannot_be_trusted_close_the_card(driver: Driver, world: World) -> None:
    """The driver is not asked at all, and the reason is said once."""
    tenant = world.tenant(memory=MIB)
    (tenant.folder / "account").unlink()

    done = subprocess.run(
        ["python3", "-c", f"import ctypes; print(ctypes.CDLL({driver.path()!r}).cuInit(0))"],
        env=driver.environment(tenant),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "800\n"
    assert (
        done.stderr
        == "partage: account: the library cannot map the file, or the file is too short; the card stays closed\n"
    )
