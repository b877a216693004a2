"""Values on helm's command line: `--set` makes a text of every decimal, which the chart must take as a number."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from charts import HELM, generate, needs_helm, objects_of
from partage.model.policy import Strategy
from partage.vendors.settings import PermitRule
from partage.wire.config import translate_config
from partage.wire.documents import decode

ROOT = Path(__file__).parents[2]
pytestmark = needs_helm


@pytest.mark.parametrize("key", ["deviceMemoryScaling", "deviceCoreScaling"])
@pytest.mark.parametrize(
    ("typed", "meant"), [("1.5", 1.5), ("2", 2), ("0.05", 0.05), ("10.0", 10)]
)
def test_a_scaling_is_a_number(key: str, typed: str, meant: float) -> None:
    """It is one in the ConfigMap that the HAMi document prints."""
    text = generate.rendered(str(HELM), "default", "--set", f"devicePlugin.{key}={typed}")

    (found,) = (
        yaml.safe_load(one["data"]["device-config.yaml"])["nvidia"][key]
        for one in objects_of(text)
        if one and "device-config.yaml" in (one.get("data") or {})
    )
    assert found == meant
    assert not isinstance(found, str)


@pytest.mark.parametrize("typed", ["0", "0.0", "-1", "x", "1.", "1e3"])
def test_what_is_no_scaling_is_refused(typed: str) -> None:
    """`helm install` refuses it by name."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        generate.rendered(
            str(HELM), "default", "--set", f"devicePlugin.deviceMemoryScaling={typed}"
        )

    assert "deviceMemoryScaling" in raised.value.stderr


@pytest.mark.parametrize("policy", [*Strategy, "Binpack", "SPREAD/first-fit"])
def test_every_policy_reaches_the_scheduler(policy: str) -> None:
    """Upper and lower case reach it, and NODE/CARD."""
    text = generate.rendered(str(HELM), "default", "--set", f"placement.policy={policy}")

    assert f'\n  policy: "{policy.lower()}"\n' in text


def test_a_policy_that_there_is_not_is_refused() -> None:
    """`helm install` refuses it. The scheduler would only note it, and go on with the one before."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        generate.rendered(str(HELM), "default", "--set", "placement.policy=spread/fastest")

    known = ", ".join(Strategy)
    assert f"placement.policy: no policy fastest; choose one of {known}, or" in raised.value.stderr


@pytest.mark.parametrize(
    ("key", "seam"),
    [
        ("image", "extender"),
        ("kubeScheduler.image", "extender"),
        ("kubeScheduler.pluginImage", "plugin"),
    ],
)
def test_a_digest_goes_before_the_tag(key: str, seam: str) -> None:
    """Whatever a tag says later, the image that was meant runs."""
    digest = f"sha256:{'0123456789abcdef' * 4}"
    values = f"{key}.repository=one.example.com/it,{key}.tag=v1,{key}.digest={digest},scheduler.seam={seam}"
    text = generate.rendered(str(HELM), "default", "--set", values)

    assert f"image: one.example.com/it@{digest}\n" in text
    assert "one.example.com/it:v1" not in text


def test_rules_for_wishes_reach_the_scheduler(tmp_path: Path) -> None:
    """The ConfigMap that the chart makes reads as the rules that the page shows."""
    page = (ROOT / "docs/isolation.md").read_text("utf-8")
    shown = tmp_path / "values.yaml"
    shown.write_text(re.findall(r"```yaml\n(isolation:.*?)```", page, re.DOTALL)[0])
    text = generate.rendered(str(HELM), "default", "--values", str(shown))
    (config,) = (
        one
        for one in decode("chart.yaml", text.encode()).documents
        if one.name == "partage-config"
    )

    assert translate_config([config]).settings.isolation.permits == (
        PermitRule("shop", ("shop",), ("web",), online=True, online_pods=8, online_cards=250),
        PermitRule("rest", ("*",), policy="burst-share"),
    )


@pytest.mark.parametrize(
    "rule",
    [
        "name=A",
        "onlineCards=200%",
        "onlineCards=25",
        "onlinePods=-1",
        "policy=fast",
        "onlien=true",
    ],
)
def test_a_rule_that_the_scheduler_would_refuse_is_refused(rule: str) -> None:
    """`helm install` refuses it by name."""
    good = "isolation.permits[0].name=a,isolation.permits[0].namespaces={x},isolation.permits[0].online=true"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        generate.rendered(str(HELM), "default", "--set", f"{good},isolation.permits[0].{rule}")

    assert "/isolation/permits/0" in raised.value.stderr


@pytest.mark.parametrize("typed", ["v1", "sha256:12", "0123456789abcdef"])
def test_what_is_no_digest_is_refused(typed: str) -> None:
    """`helm install` refuses it by name."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        generate.rendered(str(HELM), "default", "--set", f"image.digest={typed}")

    assert "digest" in raised.value.stderr


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("scheduler", "agentSilenceSeconds"), "agentSilenceSeconds"),
        (("isolation",), "isolation"),
        (("agent", "isolation", "online"), "online"),
    ],
)
def test_values_of_a_release_without_a_value_are_refused_by_its_name(
    path: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """`helm upgrade --reuse-values` brings all values of the old release, and none of the new chart's defaults."""
    old = tmp_path / "partage"
    shutil.copytree(generate.CHART, old)
    values = yaml.safe_load((old / "values.yaml").read_text())
    node = values
    for name in path[:-1]:
        node = node[name]
    del node[path[-1]]
    (old / "values.yaml").write_text(yaml.safe_dump(values))
    done = subprocess.run(
        [str(HELM), "template", "partage", str(old), "--kube-version", generate.KUBE_VERSION],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert named in done.stderr
    assert "schema" in done.stderr
