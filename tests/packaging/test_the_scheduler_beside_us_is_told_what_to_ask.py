"""The configuration that we give the kube-scheduler beside us."""

from kube_scheduler_config import (
    SCHEDULERS,
    ExtenderAccess,
    kube_scheduler_config,
    left_to_the_ledger,
)

from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings


def test_every_scheduler_name_has_a_profile_and_every_pod_is_asked_about() -> None:
    """No managed resources: kube-scheduler would bind `kubernetes.io/*` pods itself."""
    config = kube_scheduler_config(ExtenderAccess("http://127.0.0.1:1"), ["example.com/a"])
    assert [profile["schedulerName"] for profile in config["profiles"]] == list(SCHEDULERS)
    (extender,) = config["extenders"]
    assert "managedResources" not in extender
    assert extender["urlPrefix"] == "http://127.0.0.1:1/scheduler"
    assert "tlsConfig" not in extender
    (plugin,) = config["profiles"][0]["pluginConfig"]
    assert plugin["args"]["ignoredResources"] == ["example.com/a"]


def test_names_that_kube_scheduler_takes_for_its_own_are_left_to_it() -> None:
    """It cannot ignore them; the controller writes their totals."""
    ignored = left_to_the_ledger(FAMILIES, Settings())
    assert {"nvidia.com/gpumem", "koordinator.sh/gpu", "tke.cloud.tencent.com/qgpu-core"} <= {
        *ignored
    }
    assert not [name for name in ignored if name.startswith("kubernetes.io/")]


def test_a_pod_takes_its_turn_for_claims_after_it_has_waited_for_its_volumes() -> None:
    """Any tenant can name a volume without a provider: sixteen such pods would keep all others with claims waiting."""
    for profile in kube_scheduler_config(None, [])["profiles"]:
        named = [one["name"] for one in profile["plugins"]["preBind"]["enabled"]]
        # kube-scheduler runs those that a point names in this order, and then its others.
        assert named == ["VolumeBinding", "Partage"]


def test_https_comes_with_its_files() -> None:
    """An authority alone, or with a certificate of kube-scheduler's own."""
    access = ExtenderAccess("https://partage:8443", "/ca.crt", "/tls.crt", "/tls.key")
    (extender,) = kube_scheduler_config(access, [])["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {
        "caFile": "/ca.crt",
        "certFile": "/tls.crt",
        "keyFile": "/tls.key",
    }
