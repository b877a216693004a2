"""One genuine cluster with Partage in it for all tests here, where it can be had."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import control_plane
import pytest
import stack as partage_stack
from plugin_stack import PLUGIN

HERE = Path(__file__).parent
LONG = (
    "test_every_part_may_fail_and_come_back.py",
    "test_claims_survive_what_dies_on_a_genuine_node.py",
    "test_pod_groups_are_scheduled_whole_through_the_plugin.py",
    "test_kubectl_gets_the_same_from_both_servers.py",
    "test_a_restored_backup_is_believed.py",
    "test_resource_claims_work_on_a_genuine_node.py",
    "test_the_chart_installs_and_goes.py",
    "test_a_kube_scheduler_with_the_plugin_places_pods.py",
    "test_the_pages_install_as_printed.py",
    "test_what_stops_while_a_part_is_away.py",
    "test_containers_get_their_devices.py",
    "test_every_provider_gives_what_it_says.py",
    "test_a_pod_of_each_protocol_runs_on_a_genuine_node.py",
    "test_limits_hold_in_a_real_container.py",
    "test_a_leader_that_stands_still_is_left.py",
    "test_a_genuine_node_outlives_its_parts.py",
    "test_a_genuine_server_may_fail_in_every_way.py",
    "test_translated_pods_run_beside_others.py",
    "test_decisions_are_taken_again_offline.py",
    "test_claims_outlive_what_is_away.py",
    "test_a_proxy_serves_runtimes_without_nri.py",
    "test_late_allocations_fail.py",
    "test_each_profile_runs_under_its_roles.py",
    "test_a_card_is_shared_from_manifest_to_kernel.py",
    "test_nothing_is_left_after_it_ran.py",
    "test_a_slow_or_lying_webhook_stops_nobody_else.py",
    "test_claims_and_pods_flood_the_same_cards.py",
    "test_a_validator_takes_the_chart.py",
    "test_a_genuine_server_keeps_the_rules.py",
    "test_the_profiles_work_as_documented.py",
    "test_claims_are_tried_first_where_the_engine_says.py",
    "test_the_published_documents_work_with_kubectl.py",
    "test_a_share_changes_while_it_runs.py",
    "test_running_clusters_are_taken_over_and_given_back.py",
    "test_the_chart_runs_the_agent.py",
)
"""Files that take more than half a minute, longest first: begun last they would run alone, with nothing beside them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a genuine control plane, unless `make test-cluster` asks for it."""
    reason = control_plane.missing("kube-apiserver", "kube-scheduler", "kube-controller-manager")
    if not os.environ.get("PARTAGE_CLUSTER"):
        reason = "needs a genuine control plane: make test-cluster"
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("cluster")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What a module wants by both seams runs by the extender first, and then by the plugin."""
    seams = getattr(metafunc.module, "SEAMS", None)
    if seams and "stack" in metafunc.fixturenames:
        metafunc.parametrize("stack", seams, indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what each process of the cluster said last, where a test failed."""
    report = yield
    found = getattr(item, "funcargs", {}).get("stack")
    if report.failed and found is not None:
        for name, process in found.plane.processes.items():
            report.sections.append((f"last lines of {name}", process.tail(40)))
    return report


@pytest.fixture(scope="session")
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[partage_stack.Stack]:
    """The cluster."""
    plugged = getattr(request, "param", "extender") == "plugin"
    if plugged and not (PLUGIN / "kube-scheduler").exists():
        pytest.skip("kube-scheduler with the plugin is not built; run tests/cluster/build")
    layout = partage_stack.Layout(plugged=plugged)
    with partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=layout) as made:
        yield made
