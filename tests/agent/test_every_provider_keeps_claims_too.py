"""A share by a claim is kept to its amounts as one by a pod's record is: by every provider, word for word.

What a provider gives is looked at in a genuine container by `tests/runtime/test_every_provider_gives_what_it_says.py`,
by records. Here the runtime asks the same agent for both.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from claims_world import GIB, NODE, PATIENCE, World, share, world_of

from partage.agent.isolation.providers import (
    HamiCore,
    MigOnly,
    Mps,
    NoIsolation,
    OwnLibrary,
    Provider,
    VendorIsolation,
)
from partage.agent.nri.messages import Adjustment, Container, CreateContainerResponse, PodSandbox
from partage.daemon.agent import IsolationOptions
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType, SliceMode
from partage.vendors import names
from partage.wire.record import encode

KEPT = ("CUDA_", "LD_PRELOAD", "GPU_CORE", "NVIDIA_VISIBLE")
FIXED = {names.COMPUTE_POLICY: "fixed-share"}
UID = "uid-both"
RECORD = encode(
    Allocation(
        UID,
        "team",
        "web",
        "n",
        (
            Grant(
                "main", DeviceType.GPU, 1, "GPU-1", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu"
            ),
        ),
    )
)
PROVIDERS: dict[str, tuple[Provider, frozenset[str]]] = {
    "none": (NoIsolation(), frozenset()),
    "vendor": (VendorIsolation(), frozenset()),
    "hami-core": (
        HamiCore("/lib/libvgpu.so", "/lib/containers"),
        frozenset({"CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT", "LD_PRELOAD"}),
    ),
    "mps": (
        Mps("/run/mps"),
        frozenset({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}),
    ),
    "partage": (OwnLibrary(), frozenset()),
    "partage, compute too": (OwnLibrary(compute=True), frozenset()),
}
"""Each with variables that it must have set."""


def prepared_host(world: World, provider: Provider) -> None:
    """A node with what the provider needs on it."""
    root = world.folder
    for name in ("lib", "run/mps/pipe", "run/mps/shm"):
        (root / name).mkdir(parents=True)
    (root / "lib/libvgpu.so").touch()
    (root / "built.so").write_bytes(b"the library")
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    world.node = replace(
        NODE,
        devices=tuple(replace(one, mode=SliceMode.SHARE, cutting=None) for one in NODE.devices),
    )
    library = root / "built.so" if isinstance(provider, OwnLibrary) else None
    world.isolation = IsolationOptions(provider, library, "/state")


def seen(found: Adjustment, world: World, room: str) -> tuple[object, ...]:
    """What a container has: of a provider, of the card, and what its room says; places without the container's name."""
    limits = world.folder / "state/containers" / room / "limits"
    told = limits.read_text().splitlines() if limits.exists() else []
    return (
        sorted((one.key, one.value) for one in found.env if one.key.startswith(KEPT)),
        sorted(
            (one.destination, one.source.replace(room, "ROOM"), tuple(one.options))
            for one in found.mounts
        ),
        found.annotations,
        sorted(one.path for one in found.linux.devices) if found.linux else [],
        [line for line in told if not line.startswith("container ")],
    )


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_claim_gives_what_a_record_gives(folder: Path, name: str) -> None:
    """The same variables, mounts, limits, device files and note; the pod's own policy counts in both."""
    provider, variables = PROVIDERS[name]

    async with world_of(folder) as world:
        prepared_host(world, provider)
        async with world.agent(mig=False):
            pod = PodSandbox(
                "s-web", "web", UID, "team", annotations={**FIXED, names.ALLOCATION: RECORD}
            )
            container = Container("c-record", "s-web", "main")
            answer = await world.runtime.create(pod, container, PATIENCE)
            assert isinstance(answer, CreateContainerResponse), answer
            assert answer.adjust is not None
            by_record = seen(answer.adjust, world, "c-record")
            await world.runtime.removed(container)

            claim = world.claim("both", share(1, 30, "4Gi"), uid=UID)
            env = world.env(await world.prepared(claim))
            found = await world.create(env, annotations=FIXED)
            assert isinstance(found, Adjustment), found
            assert seen(found, world, "c-web-main") == by_record
            assert variables <= {one.key for one in found.env}
            assert found.annotations[names.SERVED] == provider.name
            limits = by_record[-1]
            assert bool(limits) is isinstance(provider, OwnLibrary)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_two_shares_of_one_card_are_kept_as_their_sum(folder: Path, name: str) -> None:
    """A claim's two requests may get the same card; the container has it once."""
    provider, _ = PROVIDERS[name]

    async with world_of(folder) as world:
        prepared_host(world, provider)
        async with world.agent(mig=False):
            found = []
            for uid, parts in (
                ("uid-sum", [share(1, 30, "4Gi")]),
                ("uid-two", [share(1, 10, "1Gi", "a"), share(1, 20, "3Gi", "b")]),
            ):
                claim = world.claim(uid, *parts, uid=uid)
                given = await world.create(world.env(await world.prepared(claim)), pod=uid)
                assert isinstance(given, Adjustment), given
                told = repr(seen(given, world, f"c-{uid}-main")).replace(uid, "UID")
                found.append(told.replace("seat-1", "seat-0").replace("slot 1", "slot 0"))
            assert found[0] == found[1]


TINY = [
    pytest.param("hami-core", "1", {"CUDA_DEVICE_MEMORY_LIMIT_0": "1m"}, id="hami-core"),
    pytest.param("hami-core", "0", {"CUDA_DEVICE_MEMORY_LIMIT_0": "1m"}, id="hami-core, nothing"),
    pytest.param("mps", "1", {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1M"}, id="mps"),
    pytest.param("partage", "0", {}, id="partage, nothing"),
]


@pytest.mark.parametrize(("name", "memory", "limits"), TINY)
async def test_next_to_no_memory_is_not_all_of_it(
    folder: Path, name: str, memory: str, limits: dict[str, str]
) -> None:
    """A limit of 0 means none to each provider."""
    async with world_of(folder) as world:
        prepared_host(world, PROVIDERS[name][0])
        async with world.agent(mig=False):
            env = world.env(await world.prepared(world.claim("tiny", share(1, 30, memory))))
            found = await world.create(env)
            assert isinstance(found, Adjustment), found
            assert limits.items() <= {one.key: one.value for one in found.env}.items()
            assert "memory 0" not in seen(found, world, "c-web-main")[-1]


async def test_where_only_instances_are_kept_shares_are_refused(folder: Path) -> None:
    """A claim is refused as a record is, with the same words."""
    async with world_of(folder) as world:
        prepared_host(world, MigOnly())
        async with world.agent(mig=False):
            env = world.env(await world.prepared(world.claim("both", share(1, 30, "4Gi"))))
            assert "only hardware instances have enforced limits" in str(await world.create(env))
            whole = world.env(await world.prepared(world.claim("all", share(0, 100, "80Gi"))))
            assert (await world.given(whole, pod="other"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
