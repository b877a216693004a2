"""ResourceClaims on one node: what a kubelet asks of a driver, what containers get, and what is refused."""

import asyncio
import json
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from claims_world import CLAIMS, GIB, NODE, PATIENCE, World, record, share, until, world_of
from click.testing import CliRunner

from fakes.nvml import Trouble
from fakes.wire import Fault
from partage.agent.dra import messages as said
from partage.agent.isolation.providers import HamiCore
from partage.agent.nri.messages import (
    Adjustment,
    Container,
    CreateContainerResponse,
    PodSandbox,
)
from partage.agent.seal import sealed, unsealed
from partage.cli.agent import agent
from partage.daemon.agent import IsolationOptions
from partage.model.node import Node
from partage.vendors import names


async def test_the_kubelet_finds_the_driver_and_is_told_which_services_it_has(
    folder: Path,
) -> None:
    """Both versions and health, at a socket of its own; both sockets go with the agent."""
    async with world_of(folder) as world:
        async with world.agent():
            method = f"{said.REGISTRATION}/GetInfo"
            info = said.PluginInfo.decode(await world.call(world.files.registry, method, b""))
            assert (info.type, info.name) == ("DRAPlugin", "gpu.partage.io")
            assert info.endpoint == str(world.files.service)
            assert info.supported_versions == (
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1alpha1.DRAResourceHealth",
            )
            status = said.RegistrationStatus(registered=True).encode()
            method = f"{said.REGISTRATION}/NotifyRegistrationStatus"
            await world.call(world.files.registry, method, status)
            world.files.registry.unlink()  # as a cleaning script does
            await until(world.files.registry.exists)
            await world.call(world.files.registry, f"{said.REGISTRATION}/GetInfo", b"")
        assert not world.files.registry.exists()
        assert not world.files.service.exists()


async def test_an_agent_that_cannot_serve_the_kubelet_says_why_and_serves_it_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says why; the kubelet finds no socket meanwhile, and one once it can be made."""
    async with world_of(folder) as world:
        place = world.files.service.parent
        async with world.agent():
            shutil.rmtree(place)
            place.touch()
            await until(lambda: "File exists" in caplog.text)
            assert not world.files.registry.exists()
            place.unlink()
            await until(world.files.registry.exists)
            await world.call(world.files.registry, f"{said.REGISTRATION}/GetInfo", b"")
        told = [line for line in caplog.messages if "File exists" in line]
        assert len(told) == 1
        assert "the kubelet cannot be served" in told[0]
        assert str(place) in told[0]


@pytest.mark.parametrize("service", [0, 1], ids=["v1", "v1beta1"])
async def test_a_container_gets_the_share_that_its_claim_holds(folder: Path, service: int) -> None:
    """The card and the limits of its provider; the mark is taken away; unprepared, nothing is left."""
    async with world_of(folder) as world:
        world.isolation = IsolationOptions(HamiCore("/lib/libvgpu.so", "/lib/containers"))
        (world.folder / "lib").mkdir()
        (world.folder / "lib/libvgpu.so").touch()
        async with world.agent() as daemon:
            claim = world.claim("half", share(1, 50, "20Gi"), uid="9f-half")
            found = (await world.prepare(claim, service=service))[claim.uid]
            assert found.devices == (
                said.Device(("r0",), "n", "gpu-1", ("partage.io/claim=claim-9f-half-0",), "s-1"),
            )
            assert await world.prepare(claim, service=service) == {claim.uid: found}
            metric = daemon.tallies.registry.get_sample_value
            assert metric("partage_agent_claims_prepared") == 1
            env = world.env(found.devices)
            given = await world.given(env)
            assert given["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            assert given["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
            assert given["CUDA_DEVICE_SM_LIMIT"] == "50"
            assert given[env[0].partition("=")[0]] == ""
            assert [one.allocation.name for one in daemon.keeper.books.latest] == ["web"]
            assert await world.unprepare(claim, service=service) == [""]
            assert await world.unprepare(claim, service=service) == [""]
            assert list(world.cdi.glob("partage.io-claim*")) == []
            assert metric("partage_agent_claims_prepared") == 0
            assert "not prepared here" in str(await world.create(env, pod="late"))


async def test_requests_go_to_the_containers_that_name_them(folder: Path) -> None:
    """Two cards by one claim; the alternative that was chosen counts as its request."""
    async with world_of(folder) as world, world.agent():
        claim = world.claim(
            "two", share(0, 10, "1Gi"), {**share(1, 20, "2Gi"), "request": "big/first"}
        )
        devices = await world.prepared(claim)
        assert [one.request_names for one in devices] == [("r0",), ("big",)]
        both = await world.given(world.env(devices))
        assert both["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
        one = await world.given(world.env(devices, "big"), "second")
        assert one["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
        other = await world.given((), "third")
        assert other["NVIDIA_VISIBLE_DEVICES"] == "void"


async def test_a_claim_is_prepared_over_every_restart(folder: Path) -> None:
    """Restarts of the agent, and of the machine, whose CDI folder is empty afterwards."""
    async with world_of(folder) as world:
        claim = world.claim("half", share(0, 60, "20Gi"))
        async with world.agent():
            before = world.env(await world.prepared(claim))
        (spec,) = world.cdi.glob("partage.io-claim*")
        assert spec.stat().st_mode & 0o777 == 0o600
        spec.unlink()
        (world.cdi / "partage.io-claim_uid-gone.json").write_text("{}")
        async with world.agent():
            assert [path.name for path in world.cdi.glob("partage.io-claim*")] == [spec.name]
            world.server.store.delete(CLAIMS, "team", "half")
            assert world.env(await world.prepared(claim)) == before
            assert (await world.given(before))["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
            assert "CardFull" in await world.refused(world.claim("more", share(0, 60, "1Gi")))


async def test_a_claim_that_was_allocated_anew_gets_what_it_holds_now(folder: Path) -> None:
    """Released and allocated on another card without an unprepare; not before its last container has ended."""
    async with world_of(folder) as world:
        claim = world.claim("moved", share(0, 100, "80Gi"))
        async with world.agent() as daemon:
            admission = daemon.keeper.claims
            assert admission is not None
            env = world.env(await world.prepared(claim))
            (old,) = admission.idle()
            await world.given(env)
            body = deepcopy(world.server.store.get(CLAIMS, "team", "moved"))
            body["status"]["allocation"]["devices"]["results"] = [
                {"driver": "gpu.partage.io", "pool": "n", "request": "r0", **share(1, 50, "9Gi")}
            ]
            world.server.store.update(CLAIMS, "team", "moved", body)
            told = await world.refused(claim)
            assert "other devices now, and pod team/web, container main has still" in told
            await world.runtime.removed(world.container())
            (device,) = await world.prepared(claim)
            assert device.device_name == "gpu-1"
            assert not admission.release(old)  # a look from before comes too late
            assert "not prepared here" in str(await world.create(env))
            given = await world.given(world.env((device,)))
            assert given["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            await world.prepared(world.claim("other", share(0, 100, "80Gi")))


@pytest.mark.parametrize(
    "result",
    [{"device": "gpu-7"}, {"device": "gpu-1", "adminAccess": True}, {"pool": "other"}, None],
    ids=["unknown", "admin", "elsewhere", "none"],
)
async def test_a_claim_whose_new_devices_cannot_be_given_does_not_get_the_old_ones(
    folder: Path, result: dict[str, Any] | None
) -> None:
    """The scheduler's ledger has them as free; the agent releases them once two looks found no container with them."""
    async with world_of(folder) as world:
        world.look = 0.01
        claim = world.claim("moved", share(0, 100, "80Gi"))
        async with world.agent():
            await world.prepared(claim)
            body = deepcopy(world.server.store.get(CLAIMS, "team", "moved"))
            (before,) = body["status"]["allocation"]["devices"]["results"]
            body["status"]["allocation"]["devices"]["results"] = (
                [] if result is None else [before | result]
            )
            world.server.store.update(CLAIMS, "team", "moved", body)

            assert await world.refused(claim)
            await until(lambda: not (world.folder / "journal/claims/uid-moved.json").exists())
            await world.prepared(world.claim("other", share(0, 100, "80Gi")))


async def test_a_claim_has_the_card_that_has_its_number_now(folder: Path) -> None:
    """After a boot the driver numbers cards otherwise: slices, scheduler and claim mean the same one."""
    async with world_of(folder) as world:
        claim = world.claim("half", share(0, 60, "20Gi"))
        async with world.agent(mig=False):
            before = await world.given(world.env(await world.prepared(claim)))
        first, second = NODE.devices
        world.node = Node("n", devices=(replace(second, minor=0), replace(first, minor=1)))
        async with world.agent(mig=False):
            after = await world.given(world.env(await world.prepared(claim)))
            assert "CardFull" in await world.refused(world.claim("more", share(0, 60, "1Gi")))
            await world.prepared(world.claim("other", share(1, 60, "1Gi")))
        name = "NVIDIA_VISIBLE_DEVICES"
        assert (before[name], after[name]) == ("GPU-0", "GPU-1")


async def test_a_claim_that_the_kubelet_has_lost_is_released(folder: Path) -> None:
    """It is not allocated any more and no container has it; a kubelet without its checkpoint never unprepares it."""
    async with world_of(folder) as world:
        world.look = 0.01
        lost, kept, freed = (
            world.claim(name, share(0, 20, "20Gi")) for name in ("lost", "kept", "freed")
        )
        async with world.agent() as daemon:
            env = world.env(await world.prepared(lost))
            await world.given(env)
            await world.prepare(kept, freed)
            prepared = lambda: daemon.tallies.registry.get_sample_value(  # noqa: E731
                "partage_agent_claims_prepared"
            )
            body = deepcopy(world.server.store.get(CLAIMS, "team", "freed"))
            del body["status"]
            world.server.store.update(CLAIMS, "team", "freed", body)
            world.server.store.delete(CLAIMS, "team", "lost")
            await until(lambda: prepared() == 2)
            asked = len(world.server.requests)
            await until(lambda: len(world.server.requests) > asked + 8)
            assert prepared() == 2  # its container has it
            await world.runtime.removed(world.container())
            await until(lambda: prepared() == 1)
            await world.given(world.env(await world.prepared(kept)))


async def test_parameters_of_any_depth_end_no_agent(folder: Path) -> None:
    """Kubernetes stores ten kilobytes of brackets for any driver. Of some depths that a decoder reads, an encoder failed."""

    async def story() -> None:
        async with world_of(folder) as world:
            world.look = 0.01
            async with world.agent(mig=False):
                mine = world.claim("x", share(0, 10, "1Gi"))
                await world.prepared(mine)
                body = deepcopy(world.server.store.get(CLAIMS, "team", "x"))
                opaque = {"driver": "gpu.example.com", "parameters": {"a": "@"}}
                body["status"]["allocation"]["devices"]["config"] = [{"opaque": opaque}]
                for depth in range(964, 984):
                    deep = json.dumps(body).replace('"@"', "[" * depth + "]" * depth).encode()
                    world.server.heal()
                    world.server.fail(Fault("GET", "claims/x", body=deep, times=1000))
                    looks = len(world.server.struck) + 2
                    await until(lambda looks=looks: len(world.server.struck) >= looks)
                await world.prepared(mine)

    await asyncio.to_thread(asyncio.run, story())  # a thread has the whole of Python's limit


@pytest.mark.parametrize("fault", [{"status": 404}, {"body": b"{}"}], ids=["404", "an-object"])
async def test_no_gateway_releases_a_claim(folder: Path, fault: dict[str, Any]) -> None:
    """An answer of a gateway, whatever it is, is no statement of the API server about the claim."""
    async with world_of(folder) as world:
        world.look = 0.01
        async with world.agent() as daemon:
            await world.prepare(world.claim("kept", share(0, 20, "20Gi")))
            world.server.fail(Fault(method="GET", path="/resourceclaims/", times=10**6, **fault))
            struck = len(world.server.struck)
            await until(lambda: len(world.server.struck) > struck + 8)

            held = daemon.tallies.registry.get_sample_value("partage_agent_claims_prepared")
            assert held == 1


async def test_how_long_claims_take_is_counted_by_what_became_of_them(folder: Path) -> None:
    """Each claim of a call, prepared, refused, unprepared, and what a disk did not take."""
    async with world_of(folder) as world, world.agent() as daemon:

        def counted(call: str, result: str) -> float:
            found = daemon.tallies.registry.get_sample_value(
                "partage_agent_claim_seconds_count", {"call": call, "result": result}
            )
            return found or 0

        good, bad = world.claim("good", share(0, 10, "1Gi")), world.claim("bad")
        found = await world.prepare(good, bad)
        assert [bool(one.error) for one in found.values()] == [False, True]
        assert counted("prepare", "done") == counted("prepare", "refused") == 1
        world.cdi.rename(world.folder / "away")
        world.cdi.write_text("no folder")
        assert "Exists" in (await world.refused(good)) or "exists" in await world.refused(good)
        assert counted("prepare", "failed") >= 1
        world.cdi.unlink()
        world.cdi.mkdir()
        assert world.env(await world.prepared(good))  # named to the runtime again
        assert await world.unprepare(good) == [""]
        assert counted("unprepare", "done") == 1


async def test_no_card_is_given_twice_whichever_way_it_is_asked_for(folder: Path) -> None:
    """Claims beside claims, claims beside pods with records, and records beside claims."""
    async with world_of(folder) as world, world.agent() as daemon:
        old = {names.ALLOCATION: record(600, 10 * GIB)}
        container = Container("c-old", "s-old", "main")
        pod = PodSandbox("s-old", "old", "uid-pod-old", "team", annotations=old)
        assert isinstance(
            await world.runtime.create(pod, container, PATIENCE), CreateContainerResponse
        )
        late = world.claim("late", share(0, 50, "1Gi"))
        assert "CardFull" in await world.refused(late)
        assert "team/old" in await world.refused(late)
        assert (
            daemon.tallies.registry.get_sample_value(
                "partage_agent_claim_failures_total", {"rule": "CardFull"}
            )
            == 2
        )
        fits = world.claim("fits", share(0, 40, "70Gi"))
        await world.prepared(fits)
        second = world.claim("second", share(0, 1, "1Gi"))
        assert "team/fits" in await world.refused(second)
        other = PodSandbox(
            "s-n",
            "new",
            "uid-pod-new",
            "team",
            annotations={names.ALLOCATION: record(10, GIB, "uid-pod-new")},
        )
        refused = await world.runtime.create(other, Container("c-n", "s-n", "main"), PATIENCE)
        assert "CardFull" in str(refused)
        await world.runtime.removed(container)
        await world.prepared(second)
        await world.unprepare(fits)
        assert isinstance(
            await world.runtime.create(other, Container("c-n", "s-n", "main"), PATIENCE),
            CreateContainerResponse,
        )
        assert "CardFull" in await world.refused(world.claim("large", share(1, 50, "81Gi")))


async def test_instances_are_made_on_demand_and_removed(folder: Path) -> None:
    """Prepare waits until the driver has made it; shares and instances of one card exclude each other."""
    async with world_of(folder) as world, world.agent():
        claim = world.claim("part", {"device": "gpu-0-mig-1g-10gb-3"})
        devices = await world.prepared(claim)
        (made,) = world.nvml.instances("GPU-0")
        assert made.start == 3
        assert devices[0].share_id == ""
        given = await world.given(world.env(devices))
        assert given["NVIDIA_VISIBLE_DEVICES"] == made.computes[0].uuid
        again = await world.given(world.env(devices), "second")
        assert again == given
        assert "CardFull" in await world.refused(world.claim("share", share(0, 10, "1Gi")))
        over = world.claim("over", {"device": "gpu-0-mig-2g-20gb-2"})
        assert "overlaps" in await world.refused(over)
        for name in ("main", "second"):
            await world.runtime.removed(Container(f"c-web-{name}", "s-web", name))
        await world.unprepare(claim)
        await until(lambda: not world.nvml.instances("GPU-0"))
        await world.prepared(over)
        assert [one.start for one in world.nvml.instances("GPU-0")] == [2]


async def test_a_call_that_the_kubelet_gives_up_is_made_again(folder: Path) -> None:
    """The card was busy when the call ended: work goes on, and the next call, of a restarted kubelet, gets it."""
    async with world_of(folder) as world:
        refused = 0
        busy = True

        def answer(_call: str) -> Trouble | None:
            nonlocal refused
            refused += busy
            return Trouble.IN_USE if busy else None

        world.nvml.before = answer
        claim = world.claim("part", {"device": "gpu-0-mig-1g-10gb-3"})
        async with world.agent() as daemon:
            call = asyncio.create_task(world.prepare(claim))
            await until(lambda: refused > 0)
            call.cancel()
            given_up = {"call": "prepare", "result": "failed"}
            metric = daemon.tallies.registry.get_sample_value
            await until(lambda: metric("partage_agent_claim_seconds_count", given_up) == 1)
            busy = False
            devices = await world.prepared(claim)
            (made,) = world.nvml.instances("GPU-0")
            given = await world.given(world.env(devices))
            assert given["NVIDIA_VISIBLE_DEVICES"] == made.computes[0].uuid


async def test_claims_of_one_call_wait_for_their_instances_together(folder: Path) -> None:
    """One after the other they would outlast the call, and the pod's events would have no reason."""
    async with world_of(folder) as world:
        busy = True
        world.nvml.before = lambda _call: Trouble.IN_USE if busy else None
        claims = [world.claim(f"c{n}", {"device": f"gpu-{n}-mig-7g-80gb-0"}) for n in (0, 1)]
        async with world.agent():
            call = asyncio.create_task(world.prepare(*claims))
            await until(lambda: len(list((world.folder / "journal/claims").glob("*.json"))) == 2)
            assert not call.done()
            busy = False
            found = await call
            assert [found[one.uid].error for one in claims] == ["", ""]


async def test_an_agent_that_makes_no_instances_says_so(folder: Path) -> None:
    """A claim of one waits with a reason."""
    async with world_of(folder) as world, world.agent(mig=False):
        refused = await world.refused(world.claim("part", {"device": "gpu-0-mig-1g-10gb-3"}))
        assert "--mig" in refused


async def test_claims_that_cannot_be_honoured_are_refused_with_their_reason(folder: Path) -> None:
    """Another claim of the name, one of another node, of a device that is not there, for administrators, of nothing."""
    async with world_of(folder) as world, world.agent():
        world.claim("a", share(0, 1, "1Gi"))
        assert "another one now" in await world.refused(said.Claim("team", "uid-old", "a"))
        assert "not found" in await world.refused(said.Claim("team", "uid-b", "b"))
        elsewhere = world.claim("c", {**share(0, 1, "1Gi"), "pool": "m"})
        assert "BadClaim" not in await world.refused(elsewhere)
        assert "on node m" in await world.refused(elsewhere)
        assert "no such card" in await world.refused(world.claim("d", share(7, 1, "1Gi")))
        admin = world.claim("e", {**share(0, 1, "1Gi"), "adminAccess": True})
        assert "administrators" in await world.refused(admin)
        assert "not allocated" in await world.refused(world.claim("f"))
        tuned = world.claim("t", share(0, 1, "1Gi"))
        body = deepcopy(world.server.store.get(CLAIMS, "team", "t"))
        opaque = {"driver": "gpu.partage.io", "parameters": {"burst": True}}
        body["status"]["allocation"]["devices"]["config"] = [{"opaque": opaque}]
        world.server.store.update(CLAIMS, "team", "t", body)
        assert "takes none" in await world.refused(tuned)
        opaque["driver"] = "gpu.example.com"
        world.server.store.update(CLAIMS, "team", "t", body)
        await world.prepared(tuned)
        odd = world.claim("g", share(0, 1, "1Gi"), uid="../../etc/passwd")
        assert "is none" in await world.refused(odd)
        found = await world.prepare(odd, world.claim("h", share(0, 1, "1Gi")))
        assert [bool(one.error) for one in found.values()] == [True, False]
        assert not (world.folder / "etc").exists()


async def test_nobody_writes_a_mark_into_a_pod(folder: Path) -> None:
    """A mark is a secret that no container sees; one that is guessed, copied or changed is refused."""
    async with world_of(folder) as world, world.agent():
        claim = world.claim("two", share(0, 10, "1Gi"), share(1, 10, "1Gi"))
        first, second = world.env(await world.prepared(claim))
        name, _, token = first.partition("=")
        for env in (f"{name}=1", f"{name[:-1]}9={token}", f"{name[:-1]}={token}"):
            assert "NoRecord" in str(await world.create((env,)))
        assert token not in json.dumps(await world.given((first, second)))


async def test_what_cannot_be_counted_once_is_refused(folder: Path) -> None:
    """Two claims in a container, a claim beside a record, a share that two containers would each have in full."""
    async with world_of(folder) as world:
        world.isolation = IsolationOptions(HamiCore("/lib/libvgpu.so", "/lib/containers"))
        (world.folder / "lib").mkdir()
        (world.folder / "lib/libvgpu.so").touch()
        async with world.agent():
            one = world.env(await world.prepared(world.claim("one", share(0, 10, "1Gi"))))
            two = world.env(await world.prepared(world.claim("two", share(0, 10, "1Gi"))))
            assert "two ResourceClaims" in str(await world.create((*one, *two)))
            own = {names.ALLOCATION: record(100, GIB, "uid-pod-web", card=1)}
            assert "by its pod's record and by" in str(await world.create(one, annotations=own))
            beside = await world.create(one, "other", annotations=own)
            assert isinstance(beside, Adjustment)
            assert "ClaimShared" in str(await world.create(one, pod="second"))
            await world.runtime.removed(Container("c-web-other", "s-web", "other"))
            assert isinstance(await world.create(one, pod="second"), Adjustment)
            whole = world.env(await world.prepared(world.claim("all", share(1, 100, "80Gi"))))
            assert (await world.given(whole, pod="a"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            assert (await world.given(whole, pod="b"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize("journalled", [True, False], ids=["journalled", "by an earlier agent"])
async def test_a_pod_of_the_same_name_does_not_have_a_share_again(
    folder: Path, *, journalled: bool
) -> None:
    """A pod deleted by force still runs; beside it only the next attempts of its own container have the share."""

    def container(pod: PodSandbox, number: int, name: str = "main") -> Container:
        return Container(f"c{number}", pod.id, name, env=env)

    def pod(uid: str) -> PodSandbox:
        return PodSandbox(f"s-{uid}", "web", uid, "team")

    async def create(pod: PodSandbox, container: Container) -> str:
        answer = await world.runtime.create(pod, container, PATIENCE)
        return "" if isinstance(answer, CreateContainerResponse) else answer.message

    async with world_of(folder) as world:
        world.isolation = IsolationOptions(HamiCore("/lib/libvgpu.so", "/lib/containers"))
        (world.folder / "lib").mkdir()
        (world.folder / "lib/libvgpu.so").touch()
        first, second = pod("one"), pod("two")
        async with world.agent():
            env = world.env(await world.prepared(world.claim("mine", share(0, 10, "10Gi"))))
            assert not await create(first, container(first, 1))
            told = await create(second, container(second, 2))
            assert "an earlier pod team/web, container main, has the same share" in told
            assert "ClaimShared" in told
            assert "ClaimShared" in await create(first, container(first, 3, "side"))
            assert not await create(first, container(first, 4))
        world.runtime.pods = (first,)
        world.runtime.containers = (container(first, 4),)
        if not journalled:
            file = world.folder / "journal/containers.jsonl"
            lines = [msgspec.json.decode(unsealed(one)) for one in file.read_bytes().splitlines()]
            for line in lines:
                assert line.get("given", {}).pop("claimant", "one") == "one"
            file.write_bytes(b"".join(sealed(msgspec.json.encode(one)) + b"\n" for one in lines))
        async with world.agent() as daemon:
            await until(lambda: "c4" in daemon.keeper.unprotected)
            assert list(daemon.keeper.books.held) == ["c4"]
            if journalled:
                assert daemon.keeper.unprotected["c4"].uid == "one"
            assert "ClaimShared" in await create(second, container(second, 5))
            # Without its pod's UID no attempt counts as its own until the runtime reports its end.
            assert ("ClaimShared" in await create(first, container(first, 6))) is not journalled
            for number in (4, 6):
                await world.runtime.removed(container(first, number))
            assert not await create(second, container(second, 7))


async def test_a_claim_that_cannot_be_read_back_closes_the_node(folder: Path) -> None:
    """What it holds is unknown until the kubelet unprepares it."""
    async with world_of(folder) as world:
        claim = world.claim("one", share(0, 10, "1Gi"))
        async with world.agent():
            await world.prepared(claim)
        (world.folder / "journal/claims/uid-one.json").write_text("{")
        other = world.claim("two", share(0, 10, "1Gi"))
        async with world.agent() as daemon:
            assert "JournalDamaged" in daemon.notes.text
            assert "UnknownHeld" in await world.refused(other)
            assert await world.unprepare(claim) == [""]
            assert "JournalDamaged" not in daemon.notes.text
            await world.prepared(other)


async def test_a_claim_that_cannot_be_read_back_may_be_prepared_again(folder: Path) -> None:
    """The API server's state counts, unless its containers have other devices."""
    async with world_of(folder) as world:
        claim = world.claim("one", share(0, 60, "1Gi"))
        async with world.agent():
            await world.given(world.env(await world.prepared(claim)))
        world.runtime.containers = (world.container(),)
        (world.folder / "journal/claims/uid-one.json").write_text("{")
        body = deepcopy(world.server.store.get(CLAIMS, "team", "one"))
        (result,) = body["status"]["allocation"]["devices"]["results"]
        async with world.agent() as daemon:
            result |= share(1, 60, "1Gi")
            world.server.store.update(CLAIMS, "team", "one", body)
            assert "has still those from before" in await world.refused(claim)
            result |= share(0, 60, "1Gi")
            world.server.store.update(CLAIMS, "team", "one", body)
            await world.prepared(claim)
            assert "JournalDamaged" not in daemon.notes.text
            assert "CardFull" in await world.refused(world.claim("two", share(0, 60, "1Gi")))
            await world.prepared(world.claim("three", share(0, 40, "1Gi")))


async def test_the_kubelet_is_told_the_health_of_devices(folder: Path) -> None:
    """The health of all of them at once, and again when one changes."""
    async with world_of(folder) as world, world.agent() as daemon:
        options = (("grpc.use_local_subchannel_pool", 1),)
        target = f"unix:{world.files.service}"
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stream = channel.unary_stream(f"/{said.HEALTH}/NodeWatchResources")(b"")
            first = said.HealthResponse.decode(await stream.read())
            assert {one.health for one in first.devices} == {said.HEALTHY}
            assert len(first.devices) == 52
            ill = replace(NODE.devices[1], healthy=False, health_detail="fell off")
            daemon.take(replace(NODE, devices=(NODE.devices[0], ill)))
            async with asyncio.timeout(PATIENCE):
                while True:
                    told = said.HealthResponse.decode(await stream.read())
                    found = {one.device.device_name: one for one in told.devices if one.device}
                    if found["gpu-1"].health == said.UNHEALTHY:
                        break
            assert found["gpu-1"].message == "fell off"
            assert found["gpu-0"].health == said.HEALTHY
            stream.cancel()


async def test_what_is_no_message_is_refused(folder: Path) -> None:
    """More claims than any pod has are refused too."""
    async with world_of(folder) as world, world.agent():
        method = f"{said.SERVICES[0]}/NodePrepareResources"
        many = said.ClaimRequest((said.Claim("a", "b", "c"),) * 257).encode()
        for argument in (b"\x0a\xff", many):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await world.call(world.files.service, method, argument)
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--standalone"], "needs the API server"),
        (["--devices", "x.yaml"], "needs the API server"),
        (["--cri-socket", "x.sock"], "needs NRI"),
    ],
)
def test_options_that_do_not_go_with_claims_are_refused(options: list[str], told: str) -> None:
    """The agent refuses them before it begins anything."""
    result = CliRunner().invoke(agent, ["--dra", "--node", "n", *options])
    assert result.exit_code == 2
    assert told in result.output


async def test_what_pods_hold_is_not_offered_to_claims(folder: Path) -> None:
    """A bound pod's share leaves the slices, and returns when the pod has ended; a damaged record closes every card."""

    def offered(world: World) -> dict[str, tuple[str, bool]]:
        """Memory of each card's share, and whether the card is marked."""
        found = world.server.store.list("/apis/resource.k8s.io/v1/resourceslices", None)
        return {
            one["name"]: (one["capacity"]["memory"]["value"], "taints" in one)
            for part in found
            for one in part["spec"].get("devices", ())
            if "mig" not in one["name"]
        }

    async with world_of(folder) as world:
        whole = {"gpu-0": ("80Gi", False), "gpu-1": ("80Gi", False)}
        pods = "/api/v1/pods"
        world.server.store.create(
            pods,
            "team",
            {
                "metadata": {
                    "name": "old",
                    "uid": "uid-pod-old",
                    "annotations": {names.ALLOCATION: record(300, 20 * GIB)},
                },
                "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
                "status": {"phase": "Running"},
            },
        )
        async with world.agent():
            await until(lambda: bool(offered(world)))
            assert offered(world) == {**whole, "gpu-0": ("60Gi", False)}
            odd = deepcopy(world.server.store.get(pods, "team", "old"))
            odd["metadata"]["annotations"][names.ALLOCATION] = "?"
            world.server.store.update(pods, "team", "old", odd)
            await until(lambda: offered(world) == dict.fromkeys(whole, ("80Gi", True)))
            world.server.store.delete(pods, "team", "old")
            await until(lambda: offered(world) == whole)


async def test_the_card_with_the_least_room_is_offered_first(folder: Path) -> None:
    """An allocator takes the first that fits: what is prepared decides which one that is."""

    def tried(world: World) -> list[str]:
        found = world.server.store.list("/apis/resource.k8s.io/v1/resourceslices", None)
        listed = [one["name"] for part in found for one in part["spec"].get("devices", ())]
        return [name for name in listed if "mig" not in name]

    async with world_of(folder) as world, world.agent():
        await until(lambda: tried(world) == ["gpu-0", "gpu-1"])
        claims = [
            world.claim("small", share(0, 20, "20Gi")),
            world.claim("large", share(1, 70, "70Gi")),
        ]
        for one in claims:
            await world.prepared(one)
        await until(lambda: tried(world) == ["gpu-1", "gpu-0"])
        assert await world.unprepare(claims[1]) == [""]
        await until(lambda: tried(world) == ["gpu-0", "gpu-1"])
