"""Values check themselves when they are made."""

import pytest

from partage.model.allocation import Charge, Grant, GrantMode, charges_of
from partage.model.device import Device, DeviceType
from partage.model.errors import InvalidValue
from partage.model.pod import Pod
from partage.model.request import DeviceRequest, Phase, Scope

GPU = DeviceType.GPU


@pytest.mark.parametrize(
    "fields",
    [{"minor": -1}, {"core_milli": -1}, {"memory_bytes": -1}, {"slots": -1}],
    ids=str,
)
def test_devices_have_no_negative_amounts(fields: dict[str, int]) -> None:
    """The message names the device."""
    with pytest.raises(InvalidValue, match="GPU-0"):
        Device(GPU, **({"minor": 0, "uuid": "GPU-0"} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 0},
        {"count": -1},
        {"core_milli": -1},
        {"memory_bytes": -1},
        {"memory_milli": -1},
        {"memory_bytes": 1, "memory_milli": 1},
    ],
    ids=str,
)
def test_requests_ask_for_something_in_one_way(fields: dict[str, int]) -> None:
    """No request for nothing, less than nothing, or memory twice."""
    with pytest.raises(InvalidValue):
        DeviceRequest(GPU, **fields)


def test_pods_are_named_for_people() -> None:
    """Namespace and name."""
    assert Pod("u", "ns", "p").key == "ns/p"


def grant(name: str, phase: Phase = Phase.MAIN, core: int = 0, **fields: object) -> Grant:
    """A grant on card 0."""
    return Grant(name, GPU, 0, "GPU-0", core, core * 10, GrantMode.SHARE, phase, **fields)  # type: ignore[arg-type]


INIT, SIDECAR = Phase.INIT, Phase.SIDECAR


@pytest.mark.parametrize(
    ("grants", "core", "slots"),
    [
        pytest.param([grant("a", core=3), grant("b", core=4)], 7, 2, id="sum"),
        pytest.param([grant("i", INIT, 9), grant("a", core=4)], 9, 1, id="maximum"),
        pytest.param([grant("i", INIT, 9), grant("j", INIT, 8)], 9, 1, id="one init at a time"),
        pytest.param([grant("s", SIDECAR, 2), grant("i", INIT, 9)], 11, 2, id="sidecar before"),
        pytest.param([grant("i", INIT, 9), grant("s", SIDECAR, 2)], 9, 1, id="sidecar after"),
        pytest.param(
            [grant("s", SIDECAR, 2), grant("i", INIT, 3), grant("a", core=4)], 6, 2, id="all three"
        ),
        pytest.param(
            [grant("i", INIT, 3), grant("i", INIT, 4)], 7, 2, id="init twice on the card"
        ),
        pytest.param(
            [grant("s", SIDECAR, 1), grant("i", INIT, 3), grant("i", INIT, 4)],
            8,
            3,
            id="init twice beside a sidecar",
        ),
    ],
)
def test_charges_add_what_runs_together(grants: list[Grant], core: int, slots: int) -> None:
    """Containers that run together add up; the largest moment counts, in every dimension."""
    (charge,) = charges_of(grants)

    assert (charge.core_milli, charge.memory_bytes, charge.slots) == (core, core * 10, slots)


def test_charges_join_conditions_of_all_containers() -> None:
    """The tightest limit, the widest fence, every function, each unit's sum or maximum."""
    grants = [
        grant("a", extras=(("x", 1),), sharers=4, fence=Scope.PCIE, function=(0, "f0")),
        grant("b", extras=(("x", 2), ("y", 1)), fence=Scope.NUMA, function=(1, "f1")),
        grant("i", INIT, extras=(("x", 9),), sharers=2, exclusive=True),
        grant("j", INIT),
    ]

    (charge,) = charges_of(grants)

    assert charge == Charge(
        GPU,
        0,
        "GPU-0",
        slots=2,
        extras=(("x", 9), ("y", 1)),
        exclusive=True,
        sharers=2,
        functions=("f0", "f1"),
        fence=Scope.NUMA,
    )


def test_charges_are_one_a_device_in_order() -> None:
    """Devices come by type and minor, whatever the order of grants."""
    nic = Grant("c", DeviceType.RDMA, 1, "N", 10, 0, GrantMode.SHARE)
    second = Grant("c", GPU, 1, "GPU-1", 10, 0, GrantMode.WHOLE)

    charges = charges_of([nic, second, grant("c")])

    assert [(c.type, c.minor, c.exclusive) for c in charges] == [
        (GPU, 0, False),
        (GPU, 1, True),
        (DeviceType.RDMA, 1, False),
    ]
    assert charges_of([]) == ()
