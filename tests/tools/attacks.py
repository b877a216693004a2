"""What hostile tenants and strangers were tried with: one line an attack, and the tests that try it.

    .venv/bin/python tests/tools/attacks.py            run them all, and print a line for each
    .venv/bin/python tests/tools/attacks.py --table    print the table of docs/reliability.md

Each attack is an ordinary test of the suite, so the gate has them all; this is where they stand together.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of harm.

    Attributes:
        by: the attacker.
        tried: what was tried, in how many shapes the tests have.
        noticed: what others notice of it.
        tests: below `tests/`; of a file all, or one by its name.
    """

    by: str
    tried: str
    noticed: str
    tests: tuple[str, ...]


_SERVING: Final = "serving/test_no_client_holds_a_port.py"
_PLUGIN: Final = "agent/test_a_plugin_serves_the_runtime.py"
_ROOMS: Final = "agent/test_shares_get_rooms_of_their_own.py"
_LOOKS: Final = "agent/test_no_tenant_costs_the_agent_its_memory.py"
_PAST: Final = "agent/test_who_computes_past_the_library_is_named.py"
_COMPARED: Final = "agent/test_what_four_parts_say_is_compared.py"
_LEASES: Final = "agent/test_no_lease_holds_up_the_agent.py"
_READERS: Final = "daemon/test_explanations_are_for_those_who_may_read.py"
_CHART: Final = "packaging/test_the_chart_mounts_what_the_agent_needs.py"
_CEL: Final = "webhook/test_the_api_server_decides_the_same_by_itself.py"
_FORGED: Final = "webhook/test_forged_and_broken_pods_are_refused.py"
_CYCLES: Final = "cli/test_services_seldom_look_for_cycles.py"
_HARD: Final = "extender/test_no_pod_costs_more_than_its_share.py"
_CROWDS: Final = "extender/test_a_tenant_with_hard_pods_waits_for_himself.py"
_ROOM: Final = "daemon/test_room_is_made_for_important_pods.py"
_BURST: Final = "extender/test_a_burst_of_waiting_pods_is_woken_in_turn.py"
_PROPOSED: Final = "extender/test_nodes_are_proposed_for_claims.py"
_PLANS: Final = "extender/test_the_plugin_finds_room_that_others_can_make.py"
_WRITES: Final = "daemon/test_no_burst_floods_the_api_server.py"
_RECORD: Final = "record/test_a_record_is_replayed_to_the_same_decisions.py"
_TEMPLATES: Final = "daemon/test_templates_go_with_their_last_pod.py"
_WAY: Final = "kube/test_no_credential_is_shown_to_the_way.py"
_LISTS: Final = "kube/test_lists_come_whole.py"
_OBJECTS: Final = "kube/test_requests_reach_their_resource.py"
_DOCTOR: Final = "doctor/test_each_misconfiguration_is_named.py"
_PACED: Final = "kube/test_what_changes_all_the_time_is_told_now_and_then.py"
_UP: Final = "apiserver/test_no_client_holds_the_server.py"

ATTACKS: Final = (
    Attack(
        "tenant",
        "pods hard to place, one or hundreds",
        "at most 50 ms of CPU each at 5,000 nodes; the pod waits with a reason, and others have their turn",
        (
            f"{_HARD}::test_a_hard_pod_is_answered_within_its_bound",
            f"{_HARD}::test_no_pod_that_is_searched_for_is_harder",
            f"{_CROWDS}::test_an_ordinary_pod_behind_a_row_has_its_turn_soon",
            f"{_CROWDS}::test_many_namespaces_share_what_one_has",
            "embedded/test_hard_pods_hold_up_nobody.py",
        ),
    ),
    Attack(
        "tenant",
        "nonsense in every field of a pod",
        "none",
        (
            "embedded/test_hard_pods_hold_up_nobody.py::test_odd_pods_are_answered_and_hold_up_nobody",
        ),
    ),
    Attack(
        "tenant",
        "fields nested 9,000 deep, broken text; hundreds of pods and claims of a megabyte or 78,000 annotations",
        "all others are read; these take their text's memory",
        (
            "kube/test_odd_objects_stop_no_list.py",
            "cli/test_a_deep_object_hides_no_other.py",
            "wire/test_an_object_takes_no_more_memory_than_its_text.py",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_a_claim_into_which_no_label_fits_loses_its_finalizer_alone",
            "agent/test_claims_are_prepared_and_given.py::test_parameters_of_any_depth_end_no_agent",
            f"{_LISTS}::test_large_objects_come_in_smaller_pages",
        ),
    ),
    Attack(
        "tenant",
        "conditions on labels that differ by node; requests that exclude nodes",
        "each node is read once",
        (
            f"{_HARD}::test_conditions_on_labels_are_asked_of_all_nodes_at_once",
            f"{_HARD}::test_nodes_that_object_in_words_of_their_own_are_judged_together",
            f"{_HARD}::test_a_node_is_looked_at_for_the_request_alone_that_rules_it_out",
        ),
    ),
    Attack(
        "tenant",
        "large pods for other schedulers; labels of a megabyte that each refusal repeats",
        "refused by the same bounds",
        (
            "wire/test_an_object_takes_no_more_memory_than_its_text.py::test_no_text_is_compared_that_no_node_has",
            "webhook/test_large_pods_are_judged_in_time.py::test_bounds_hold_whatever_scheduler_a_pod_names",
        ),
    ),
    Attack(
        "tenant",
        "preemption beside many small pods, and plans without an end",
        "as few victims as needed, or none; planning pauses",
        (
            "laws/test_a_plan_asks_no_more_than_a_decision_at_a_time.py",
            f"{_ROOM}::test_rows_of_pods_for_which_nothing_helps_leave_time_to_others",
            "laws/test_victims_are_the_least_that_will_do.py::test_as_few_of_many_small_pods_go_as_will_do",
            "laws/test_victims_are_the_least_that_will_do.py::test_a_plan_that_is_not_finished_is_none",
        ),
    ),
    Attack(
        "tenant",
        "20,000 pods at once, thousands waiting, thousands of quotas, groups that never fit",
        "rates, memory and Bindings are bounded; others have their turn within seconds",
        (
            _WRITES,
            "extender/test_a_group_that_fails_wakes_no_pod.py",
            "extender/test_pods_at_rest_are_left_alone.py",
            "extender/test_facts_reach_the_books.py::test_a_quota_whose_limits_stay_the_same_is_not_read_again",
            f"{_BURST}::test_only_so_many_are_woken_a_second",
            f"{_BURST}::test_each_namespace_has_its_turn",
            f"{_BURST}::test_who_never_comes_is_woken_after_the_others",
            f"{_BURST}::test_of_many_it_is_asked_rarely",
            "extender/test_attempts_of_the_plugin_keep_the_books.py::test_only_the_newest_proposal_is_remembered",
        ),
    ),
    Attack(
        "tenant",
        "disruption budgets of a megabyte each, or that always change, so that preemption ends for all",
        "its pods are not evicted; preemption of others goes on",
        (
            "extender/test_the_plugin_finds_room_that_others_can_make.py::test_a_budget_that_compares_thousands_of_values_lets_nobody_go",
            f"{_ROOM}::test_a_budget_by_which_the_api_server_refuses_spares_its_pods",
            f"{_ROOM}::test_a_victim_that_was_refused_is_spared_if_others_help",
            f"{_ROOM}::test_refused_victims_are_remembered_within_bounds",
        ),
    ),
    Attack(
        "tenant",
        "ResourceClaims with thousands of requests or pods, and such pods with thousands of terms, tolerations or containers",
        "bounded work; kube-scheduler decides alone",
        (
            f"{_PROPOSED}::test_claims_of_thousands_of_requests_are_left_to_kube_scheduler",
            f"{_PROPOSED}::test_an_explanation_looks_at_so_many_requests_of_claims",
            f"{_PROPOSED}::test_a_claim_for_less_than_nothing_is_left_to_kube_scheduler",
            "extender/test_pods_with_claims_are_listed.py::test_a_claim_that_comes_and_goes_has_no_pod_read_again",
            "wire/test_claims_that_wait_are_judged.py::test_requests_that_many_devices_meet_cost_little_beside_one_that_none_meets",
            "embedded/test_claims_are_followed.py::test_pods_are_tried_again_for_a_claim_that_may_help_them",
            f"{_PROPOSED}::test_a_pod_beyond_the_bounds_of_pods_with_names_is_left_to_kube_scheduler",
            f"{_PROPOSED}::test_such_a_pod_is_explained_on_its_node_too",
        ),
    ),
    Attack(
        "tenant",
        "any number of claims with long selectors or thousands of combinations",
        "answers from manifests take seconds a namespace, and say so",
        (
            "wire/test_claims_that_wait_are_judged.py::test_claims_of_a_namespace_cost_together_what_one_may",
            "wire/test_claims_that_wait_are_judged.py::test_selectors_of_a_namespace_take_together_what_those_of_one_pod_may",
            "wire/test_selectors_of_claims_are_bounded.py::test_what_it_takes_to_read_expressions_counts",
        ),
    ),
    Attack(
        "tenant",
        "thousands of templates of claims, also by an annotation that changes",
        "each namespace has one made in turn",
        (
            f"{_TEMPLATES}::test_what_cannot_be_made_is_tried_and_said_once",
            f"{_TEMPLATES}::test_a_pod_has_the_templates_alone_that_its_claims_name",
            f"{_TEMPLATES}::test_a_namespace_with_many_templates_delays_no_other",
        ),
    ),
    Attack(
        "tenant",
        "pods with claims whose volumes never come",
        "others' claims are stored meanwhile",
        (
            "packaging/test_the_scheduler_beside_us_is_told_what_to_ask.py::test_a_pod_takes_its_turn_for_claims_after_it_has_waited_for_its_volumes",
        ),
    ),
    Attack(
        "tenant",
        "short-lived important pods; unused nominations; victims and leaving pods that never end",
        "at most 240 victims a minute and namespace, none beside such pods; cards are held two minutes, or ten while victims end",
        (
            f"{_PLANS}::test_no_pod_goes_for_a_place_beside_one_that_takes_long_to_leave",
            f"{_PLANS}::test_pods_that_leave_at_the_end_of_time_are_not_waited_for",
            f"{_PLANS}::test_while_pods_end_beside_a_victim_no_other_is_evicted",
            f"{_PLANS}::test_no_room_is_kept_for_a_waiting_pod_that_is_being_deleted",
            f"{_PLANS}::test_a_waiting_pod_that_is_being_deleted_is_not_woken",
            f"{_PLANS}::test_room_kept_for_a_less_important_pod_is_taken_at_once",
            f"{_PLANS}::test_a_group_that_preempts_in_vain_does_so_ever_more_seldom",
            f"{_PLANS}::test_room_of_a_group_that_failed_is_free_without_a_further_question",
            f"{_BURST}::test_victims_of_a_namespace_are_bounded_a_minute",
            f"{_BURST}::test_the_plugin_offers_nobody_beyond_the_bound",
            f"{_BURST}::test_nor_does_the_verb",
            f"{_ROOM}::test_a_namespace_has_so_many_sent_away_and_no_more",
            f"{_BURST}::test_room_is_not_kept_for_ever_for_who_never_comes",
            f"{_BURST}::test_room_is_not_kept_on_one_node_after_the_other_for_who_never_comes",
            "agent/test_the_agent_works_with_its_kubelet.py::test_a_disruption_budget_that_never_allows_it_costs_few_requests",
            "agent/test_limits_are_told_and_acted_on.py::test_a_refused_eviction_is_not_called_a_condition",
            f"{_BURST}::test_what_is_free_is_not_kept_for_ever_beside_a_victim_that_stays",
        ),
    ),
    Attack(
        "node",
        "a card that fails and recovers all the time, or whose driver reports nonsense",
        "one write each 15 s; nonsense is left out",
        (
            "agent/test_real_devices_are_found.py::test_a_card_with_an_impossible_name_is_left_out",
            "agent/test_real_devices_are_found.py::test_figures_that_cannot_be_are_no_figures",
            "agent/test_names_of_devices_become_edits.py::test_no_file_holds_up_who_reads_it",
            "agent/test_reports_are_written_on_change_only.py::test_a_card_that_falls_ill_and_recovers_all_the_time_is_written_now_and_then",
        ),
    ),
    Attack(
        "tenant",
        "endless variables, mappings, descriptors, threads, names and lists; files that never answer or answer with errors",
        "the container counts as not in force; the agent judges the others",
        (
            f"{_LOOKS}::test_a_process_costs_no_memory",
            "agent/test_a_plugin_serves_the_runtime.py::test_what_is_kept_of_those_that_run_is_what_is_looked_at",
            f"{_LOOKS}::test_a_crowd_is_not_looked_into",
            f"{_LOOKS}::test_the_others_are_judged_at_each_look",
            f"{_LOOKS}::test_many_who_cost_nearly_too_much_share_a_bound",
            f"{_LOOKS}::test_files_that_do_not_answer_hold_up_nobody_elses_look",
            f"{_LOOKS}::test_nobody_is_blamed_for_files_of_others",
            "agent/test_what_passes_ends_no_loop.py::test_a_program_that_cannot_be_opened_is_no_process_that_has_ended",
            f"{_LOOKS}::test_a_file_system_of_a_tenant_may_answer_with_any_error",
            f"{_ROOMS}::test_an_image_on_a_server_that_does_not_answer_holds_up_no_other",
        ),
    ),
    Attack(
        "tenant",
        "device nodes, pipes, the kernel's files, links, mazes, races and mounts where the agent reads and writes",
        "it opens only regular files below the container's root, and fills no disk",
        (
            f"{_LOOKS}::test_no_file_of_the_kernel_is_read",
            f"{_CHART}::test_tenants_of_mps_cannot_fill_the_host",
            "agent/test_mps_is_looked_after.py::test_a_daemon_meets_nothing_that_a_tenant_left",
            "agent/test_mps_is_looked_after.py::test_a_daemon_that_cannot_be_is_told",
            f"{_LOOKS}::test_nothing_but_regular_files_is_opened",
            f"{_LOOKS}::test_no_race_leads_out_of_a_root",
            f"{_LOOKS}::test_a_maze_of_links_ends",
            "agent/test_nobody_fills_the_node.py",
            "agent/test_what_containers_leave_is_removed.py::test_nothing_stays_that_was_made_unchangeable",
            "agent/test_what_containers_leave_is_removed.py::test_what_stays_keeps_nothing_else",
        ),
    ),
    Attack(
        "tenant",
        "endless restarts, tens of thousands of processes, millions of nested folders, writes that delay each flush of the disk",
        "looks at its namespace have a bound; others' containers start, or are refused",
        (
            f"{_PLUGIN}::test_a_disk_that_is_slow_does_not_end_the_connection",
            f"{_PLUGIN}::test_a_look_that_takes_long_does_not_end_the_connection",
            f"{_LOOKS}::test_attempts_without_an_end_leave_others_their_looks",
            f"{_LOOKS}::test_looks_that_take_long_are_few",
            f"{_ROOMS}::test_a_process_that_the_runtime_names_is_found_among_any_number",
            "agent/test_what_containers_leave_is_removed.py::test_who_decides_lists_nothing_that_a_tenant_made",
            "agent/test_the_agent_works_with_its_kubelet.py::test_a_pod_that_is_gone_holds_up_the_kubelet_once",
        ),
    ),
    Attack(
        "tenant",
        "leases on files that others need; seats that grow, are closed, cannot be emptied, were passed on or have endless attributes",
        "the next container has a seat at once",
        (
            _LEASES,
            f"{_ROOMS}::test_a_seat_that_its_tenant_closed_is_readable_again",
            "agent/test_nobody_fills_the_node.py",
            "native/test_a_hostile_neighbour_costs_fairness_alone.py::test_a_seat_that_a_former_tenant_kept_open_is_no_one_elses",
        ),
    ),
    Attack(
        "tenant",
        "misleading names of control groups and processes, reused process numbers, programs "
        "without a first thread or with their own root, device files renamed, buried or passed on",
        "the agent sees each container's own processes, and which use a card",
        (
            f"{_PAST}::test_a_process_tells_its_number_by_no_name",
            f"{_PAST}::test_a_device_file_by_another_name_counts",
            f"{_PAST}::test_open_files_that_were_put_away_count",
            f"{_LOOKS}::test_a_device_file_below_endless_folders_is_seen",
            f"{_LOOKS}::test_a_program_below_endless_folders_has_not_ended",
            f"{_PAST}::test_who_put_away_files_of_other_names_is_known_to_the_driver",
            f"{_PAST}::test_a_card_by_another_name_is_in_use",
            f"{_PAST}::test_a_file_below_another_root_counts",
            f"{_COMPARED}::test_each_difference_has_its_name",
            f"{_COMPARED}::test_the_drivers_processes_are_those_of_containers",
            "native/test_containers_say_whether_limits_hold.py::test_a_process_that_uses_no_card_may_be_anything",
            f"{_LOOKS}::test_names_of_groups_cost_few_comparisons",
            f"{_LOOKS}::test_a_process_is_of_the_container_whose_group_holds_the_others",
            f"{_LOOKS}::test_a_number_that_a_neighbour_took_over_is_not_the_containers",
            f"{_LOOKS}::test_a_process_outlives_its_first_thread",
        ),
    ),
    Attack(
        "tenant",
        "cards without a grant: variables, names, mounts, legacy images, other runtimes, the agent's own mark, endless "
        "containers",
        "no card opens",
        (
            "agent/test_cards_come_by_a_grant_alone.py",
            "agent/test_no_length_of_a_pod_ends_the_connection.py",
            "agent/test_the_journal_is_trusted_and_mended.py::test_no_pod_says_that_it_was_served",
        ),
    ),
    Attack(
        "tenant",
        "the whole card by policy or precedence, more `online` pods than allowed, other service accounts, forged permits, "
        "a claim's share in several pods of one name",
        "the pod gets what is allowed, with the reason",
        (
            "agent/test_no_pod_takes_more_than_its_node_grants.py",
            "laws/test_no_more_go_before_others_than_may.py",
            "extender/test_wishes_are_cut_down_and_told.py",
            "wire/test_permits_say_who_goes_before_others.py",
            "agent/test_claims_are_prepared_and_given.py::test_a_pod_of_the_same_name_does_not_have_a_share_again",
        ),
    ),
    Attack(
        "tenant",
        "forged records under every reserved key, pods that name their node, mirror pods, claims deleted in use",
        "the API server rejects them",
        (
            f"{_CEL}::test_a_pod_with_devices_names_no_node_whatever_scheduler_it_names",
            f"{_CEL}::test_forging_is_refused_without_the_webhook",
            f"{_FORGED}::test_nobody_creates_a_pod_with_a_reserved_annotation",
            f"{_FORGED}::test_a_record_is_not_changed_by_an_update",
            f"{_CEL}::test_a_claim_begins_to_be_allocated_by_its_finalizer_once",
        ),
    ),
    Attack(
        "tenant",
        "a namespace with Partage's usual name",
        "its pods are judged like others",
        (f"{_CEL}::test_only_the_namespace_that_partage_runs_in_is_left_out",),
    ),
    Attack(
        "tenant",
        "privileged containers with a share, by five protocols",
        "refused",
        (
            f"{_FORGED}::test_a_privileged_container_shares_by_no_protocol",
            f"{_FORGED}::test_a_privileged_container_may_not_share_by_hamis_protocol",
        ),
    ),
    Attack(
        "tenant",
        "admission of large pods, thousands of containers, names and annotations",
        "bounded work; others have their turn",
        (
            "webhook/test_strangers_hold_up_no_review.py::test_large_reviews_of_one_tenant_leave_room_for_others",
            "webhook/test_large_pods_are_judged_in_time.py",
            f"{_CEL}::test_an_update_that_changes_no_key_is_not_looked_into",
            "wire/test_names_that_are_nearly_known_are_told.py::test_of_all_containers_together_a_few_names_are_compared",
        ),
    ),
    Attack(
        "tenant",
        "endless explanations of hard pods, endless updates of large ones",
        "the namespace's part of search, two readings a second, 32 MiB",
        (
            "extender/test_questions_of_people_are_counted.py",
            "wire/test_readings_are_few_and_take_bounded_memory.py",
            f"{_PACED}::test_large_pods_that_change_all_the_time_are_read_now_and_then",
            f"{_PACED}::test_what_decides_of_devices_never_waits",
            f"{_PACED}::test_what_a_pod_without_a_record_asks_for_on_a_node_never_waits",
            f"{_PACED}::test_small_pods_of_one_namespace_change_together",
        ),
    ),
    Attack(
        "tenant",
        "thousands of hard pods behind the page that compares policies",
        "each policy searches for about twenty, once a minute",
        (
            "extender/test_questions_of_people_are_counted.py::test_a_comparison_of_policies_searches_for_few_hard_pods",
        ),
    ),
    Attack(
        "tenant",
        "a pod that triggers a fault of the engine; pods of megabytes in a recording",
        "the pod waits; recording pauses",
        (
            "extender/test_a_fault_in_one_pod_ends_no_connection.py",
            f"{_RECORD}::test_a_state_that_is_larger_than_a_file_is_not_written_again_and_again",
            f"{_RECORD}::test_many_large_entries_make_no_file_larger_than_it_may_be",
        ),
    ),
    Attack(
        "tenant",
        "annotations that a record makes larger than the API server allows",
        "refused, or not bound",
        (
            "webhook/test_large_pods_are_judged_in_time.py::test_bounds_hold_whatever_scheduler_a_pod_names",
            "extender/test_binds_come_to_a_known_end.py::test_a_record_for_which_the_annotations_leave_no_room_is_not_sent",
            "wire/test_allocations_are_written_and_read_back.py::test_no_label_is_longer_than_an_api_server_takes",
        ),
    ),
    Attack(
        "thief",
        "a node that reports 15,000 cards, 20,000 virtual functions, 9,000 partitions, 5,000 resources, ids of megabytes, or no HAMi annotation, or changes endlessly",
        "80 devices of a type, 256 resources and partitions are read, twice a second; such ids close a device",
        (
            "wire/test_no_node_makes_the_books_of_all_large.py",
            "wire/test_pods_are_routed_to_their_protocols.py::test_no_node_changes_what_a_default_memory_says",
            f"{_HARD}::test_functions_of_stolen_nodes_are_judged_by_group",
            _PACED,
        ),
    ),
    Attack(
        "thief",
        "a node with many cards, and hard pods",
        "a pod costs only the extra work of that node's cards",
        ("laws/test_large_nodes_cost_others_little.py",),
    ),
    Attack(
        "tenant",
        "terminal escapes, line ends and direction marks in names and annotations",
        "terminal and logs show them as numbers",
        ("cli/test_no_object_commands_the_terminal.py",),
    ),
    Attack(
        "stranger",
        "idle sockets, incomplete heads, bodies or handshakes, unread answers, an occupied port beside the probes",
        "the next caller is served",
        (
            f"{_SERVING}::test_both_ports_answer_while_one_is_held",
            f"{_SERVING}::test_who_does_not_go_on_is_closed",
            f"{_SERVING}::test_one_address_does_not_keep_all_places_busy",
            "daemon/test_the_webhook_looks_after_itself.py::test_probes_are_answered_while_others_hold_the_port",
        ),
    ),
    Attack(
        "stranger",
        "endless bodies, large answers left unread; compressed bodies; requests behind one that closes the connection",
        "at most 64 MiB together, then the largest is closed; not inflated (415); not executed",
        (
            f"{_SERVING}::test_bodies_that_are_never_whole_have_a_bound_together",
            f"{_SERVING}::test_answers_that_nobody_reads_have_a_bound_together",
            f"{_SERVING}::test_what_tls_keeps_of_requests_counts",
            f"{_SERVING}::test_no_body_is_inflated",
            f"{_SERVING}::test_nothing_is_carried_out_after_the_last_answer",
        ),
    ),
    Attack(
        "stranger",
        "questions about claims that do not exist, for which the leader waits, or of megabytes",
        "networks take turns, and API servers have half of the room",
        (
            "daemon/test_claims_of_a_cluster_are_counted.py::test_a_question_takes_little_more_memory_than_its_text",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_questions_of_a_stranger_leave_room_for_the_api_server",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_a_question_that_is_early_is_answered_by_the_news",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_a_question_about_a_past_version_is_answered_at_once",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_few_questions_of_an_address_wait_for_long",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_addresses_by_whose_questions_devices_are_reserved_have_room_of_their_own",
            "serving/test_callers_have_turns.py::test_a_network_has_its_turn_however_many_addresses_of_another_wait",
        ),
    ),
    Attack(
        "stranger",
        "endless questions about a tenant's own claim, with an invented or left finalizer",
        "its devices are held, a minute at most",
        (
            "daemon/test_claims_of_a_cluster_are_counted.py::test_a_claim_that_no_scheduler_allocates_is_reserved_by_no_question",
            "daemon/test_claims_of_a_cluster_are_counted.py::test_a_claim_that_a_tenant_asks_about_holds_one_node",
            "extender/test_claims_are_reserved_before_they_are_stored.py::test_a_claim_reserves_one_allocation_at_a_time",
            "extender/test_claims_are_reserved_before_they_are_stored.py::test_no_question_prolongs_a_reservation",
            "extender/test_claims_are_reserved_before_they_are_stored.py::test_a_namespace_has_a_bound_of_reservations",
            "extender/test_nodes_are_proposed_for_claims.py::test_a_question_that_reserves_nothing_ends_nothing_pending",
        ),
    ),
    Attack(
        "stranger",
        "tiny segments, heads of thousands of lines or without text, thousands of requests at once, other protocols",
        "the connection is closed, or serves one request at a time",
        (
            "serving/test_requests_cost_what_they_carry.py",
            "serving/test_what_is_no_http_fills_no_log.py",
            "agent/test_the_agent_is_a_service.py::test_clients_that_go_away_fill_no_log",
        ),
    ),
    Attack(
        "stranger",
        "connections for pages or left in a request, unread metrics, endless reviews",
        "addresses take turns, each with four readers of metrics; memory grows by a quarter",
        (
            f"{_CYCLES}::test_what_is_left_of_it_later_is_found_when_it_has_become_much",
            f"{_CYCLES}::test_a_wrong_path_leaves_no_frames_behind",
            "serving/test_callers_have_turns.py",
            "extender/test_few_read_the_metrics_at_a_time.py",
            "webhook/test_strangers_hold_up_no_review.py",
        ),
    ),
    Attack(
        "stranger",
        "the verbs without a certificate; thousands of made-up tokens",
        "no answer, or 401; at most 20 reviews a second; others have the next turn",
        (
            "daemon/test_the_extender_has_certificates_of_its_own.py::test_who_shows_the_secret_may_call_and_nobody_else",
            f"{_READERS}::test_made_up_tokens_cost_the_api_server_little",
            f"{_READERS}::test_a_flood_from_one_address_delays_no_other",
            f"{_READERS}::test_a_network_that_floods_by_many_addresses_gives_up_its_own",
            f"{_READERS}::test_a_token_that_was_good_is_asked_for_beside_every_flood",
            f"{_READERS}::test_a_user_who_asks_for_everything_takes_no_turn_of_others",
        ),
    ),
    Attack(
        "stranger",
        "the plugin's unix socket as another user, incomplete or giant frames, endless connections",
        "refused before a byte is read; at most 64 connections",
        (
            "serving/test_a_unix_socket_knows_its_caller.py::test_who_is_not_named_is_turned_away_before_a_byte_is_read",
            "serving/test_a_unix_socket_knows_its_caller.py::test_a_caller_that_floods_has_a_bound_and_the_log_too",
        ),
    ),
    Attack(
        "neighbour",
        "the agent's sockets; another program in PATH with the name of a kubeconfig's plugin; a link in `/tmp` in place of a tenant's folder",
        "only root may open them; the program beside the kubeconfig runs; the container is refused",
        (
            "agent/test_root_alone_speaks_to_the_agent.py",
            f"{_CHART}::test_what_another_user_put_in_its_place_is_not_opened",
            f"{_WAY}::test_a_plugin_beside_its_document_is_that_program",
        ),
    ),
    Attack(
        "stranger",
        "at `partage up`: web pages of other origins, rebound names, idle connections and endless bodies",
        "403, and no pod; the next caller is served",
        ("serving/test_pages_of_others_send_nothing_here.py", _UP),
    ),
    Attack(
        "tenant",
        "ConfigMaps and pods that look like an operator's, to hide problems from `doctor`",
        "doctor trusts only operators' namespaces",
        (
            f"{_DOCTOR}::test_no_config_map_of_a_tenant_stands_in_for_the_configuration",
            f"{_DOCTOR}::test_no_pod_of_a_tenant_stands_in_for_a_program",
            f"{_DOCTOR}::test_what_a_tenant_writes_into_a_config_map_changes_no_finding",
        ),
    ),
    Attack(
        "tenant",
        "annotations of every protocol, changed on running pods",
        "only the record counts",
        (
            "embedded/test_hard_pods_hold_up_nobody.py::test_no_annotation_of_a_running_pod_closes_its_node",
        ),
    ),
    Attack(
        "tenant",
        "thousands of pods whose requests all differ, or one for a million cards, from which the default policy learns",
        "it learns from the 512 most frequent that a node could host",
        (
            "placement/test_prices_are_chosen_by_rehearsal.py::test_pods_that_all_differ_make_no_large_mix",
            "placement/test_published_strategies_follow_their_formulas.py::test_requests_that_all_differ_are_not_all_usual",
            "placement/test_prices_are_chosen_by_rehearsal.py::test_nothing_is_learnt_from_a_pod_that_no_node_hosts",
        ),
    ),
    Attack(
        "tenant",
        "containers that start again in a pod that never does",
        "its cards stay its own until the pod ends",
        ("wire/test_pods_are_read_with_kubernetes_arithmetic.py::test_when_a_pod_is_over",),
    ),
    Attack(
        "tenant",
        "names of others' pods in refusals, events, Bindings and refused containers",
        "they name the obstacle, not its owner",
        (
            "scheduler/test_refusals_name_no_other_pod.py",
            f"{_ROOM}::test_victims_of_other_namespaces_are_counted_and_not_named",
            "agent/test_the_journal_is_trusted_and_mended.py::test_what_cannot_be_read_of_the_journal_closes_the_cards",
        ),
    ),
    Attack(
        "tenant",
        "endless changes of a running pod's share or labels, or a node's totals",
        "at most 20 writes at once, four a second a namespace; the last wish is met",
        (
            "extender/test_shares_are_adjusted_through_any_crash.py::test_who_lowers_without_an_end_leaves_others_their_turn",
            "extender/test_shares_are_adjusted_through_any_crash.py::test_who_asks_without_an_end_costs_a_bounded_number_of_writes",
            "native/test_memory_counts_for_as_long_as_its_program_runs.py::test_no_share_is_lowered_below_memory_of_a_dead_program_whose_child_lives",
            "controllers/test_pods_with_wrong_devices_are_flagged.py::test_a_writer_that_undoes_all_is_answered_ever_more_slowly",
            "agent/test_limits_are_told_and_acted_on.py::test_a_condition_that_changes_at_each_look_costs_few_requests",
            "controllers/test_nodes_report_what_their_devices_have.py::test_a_foreign_edit_is_put_right_and_a_fight_slows_down",
        ),
    ),
    Attack(
        "tenant",
        "small pods on the best nodes that repel all others' pods",
        "after eight proposals kube-scheduler tries all other nodes at once",
        (
            "extender/test_attempts_of_the_plugin_keep_the_books.py::test_a_pod_that_most_nodes_repel_gets_to_the_others",
        ),
    ),
    Attack(
        "tenant",
        "a small request below a quota, whose share then grows to the card",
        "refused: it grows up to its request",
        (
            "extender/test_shares_are_adjusted_through_any_crash.py::test_no_share_grows_beyond_a_quota_that_counts_requests",
        ),
    ),
    Attack(
        "reader",
        "names of pods, namespaces and quotas in metrics and node summaries; planted words, finalizers and IP addresses in a "
        "masked snapshot",
        "only cards, amounts and sums are shown",
        (
            "agent/test_limits_are_told_and_acted_on.py::test_nameless_series_name_no_pod",
            "extender/test_debug_api_prints_what_the_document_prints.py::test_names_are_shown_to_those_who_may_read_all_pods",
            "record/test_masks_keep_nothing_secret.py",
        ),
    ),
    Attack(
        "thief",
        "uses the scheduler's or an agent's token to write images, taints, finalizers, readiness, addresses, nodes' labels, other nodes' slices",
        "the API server rejects them",
        ("packaging/test_stolen_tokens_change_no_spec.py",),
    ),
    Attack(
        "gateway",
        "login pages, `{}`, 404, endless or compressed answers, waits of years; writes sent twice, events about no object",
        "nothing counts as done, deleted or free",
        (
            f"{_LISTS}::test_what_is_no_list_is_told",
            f"{_LISTS}::test_pages_that_are_not_of_one_list_are_told",
            f"{_LISTS}::test_a_compressed_answer_is_not_inflated",
            f"{_OBJECTS}::test_a_binding_is_done_only_where_the_server_says_so",
            f"{_OBJECTS}::test_what_is_no_object_is_not_taken_for_another",
            f"{_OBJECTS}::test_a_404_of_the_way_is_no_word_of_the_pod",
            "kube/test_leases_have_one_holder.py::test_a_leader_that_cannot_renew_stops_in_time",
            "kube/test_watching_survives_gaps.py::test_patience_has_an_end",
            "kube/test_watching_survives_gaps.py::test_an_event_about_no_object_ends_none",
            "daemon/test_faults_of_the_api_cost_no_card.py::test_a_binding_that_was_repeated_on_the_way_is_bound",
            "daemon/test_faults_of_the_api_cost_no_card.py::test_a_record_that_was_repeated_on_the_way_is_read_back",
        ),
    ),
    Attack(
        "listener",
        "tokens, passwords and plugins' credentials over plain HTTP",
        "none is sent, and no such token is reviewed",
        (
            f"{_WAY}::test_a_server_by_plain_http_is_told_of_nobody",
            f"{_WAY}::test_nor_does_a_program_send_any_to_another_machine",
            "extender/test_debug_api_prints_what_the_document_prints.py::test_a_token_by_plain_http_is_refused_and_not_reviewed",
        ),
    ),
)


@dataclass(slots=True, eq=False)
class Tally:
    """What came of the tests; a plugin of pytest."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test is over."""
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def verdict(self, attack: Attack) -> str:
        """In one word, and of how many shapes."""
        mine = [f"tests/{one}" for one in attack.tests]

        def of(ids: set[str]) -> int:
            return sum(
                any(one == id_ or one.startswith((f"{id_}::", f"{id_}[")) for id_ in mine)
                for one in ids
            )

        if of(self.failed) or not of(self.passed) + of(self.skipped):
            return "GOT THROUGH"
        return f"held ({of(self.passed)})" if of(self.passed) else "not tried here"


def table() -> str:
    """The attacks for docs/reliability.md."""
    rows = ["| attack | effect on others |", "| --- | --- |"]
    for one in ATTACKS:
        by = "" if one.by == "tenant" else f"*{one.by}*: "
        rows.append(f"| {by}{one.tried} | {one.noticed} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    """Run, or print the table; the exit status is 1 where an attack got through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table and end")
    parser.add_argument("only", nargs="*", help="attacks whose line has one of these words")
    given = parser.parse_args(arguments)
    if given.table:
        sys.stdout.write(f"{table()}\n")
        return 0
    chosen = [
        one
        for one in ATTACKS
        if not given.only or any(word in f"{one.by} {one.tried}" for word in given.only)
    ]
    tally = Tally()
    tests = dict.fromkeys(f"{ROOT}/tests/{test}" for one in chosen for test in one.tests)
    code = pytest.main(
        ["-q", "--no-header", "--no-summary", "-p", "no:randomly", *tests], plugins=[tally]
    )
    for one in chosen:
        sys.stdout.write(f"{tally.verdict(one):14} {one.by}: {one.tried} -> {one.noticed}\n")
    return int(code != 0 or any(tally.verdict(one) == "GOT THROUGH" for one in chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
