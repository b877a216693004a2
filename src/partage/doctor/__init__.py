"""Checks the setup of a cluster or a node: names each error, the violated rule and the repair.

Every check is a pure function from gathered facts to findings, so each is tested with a broken input. The
command gathers the facts. Where the engine knows better, the checks build the service's books from the facts and
report their quarantines, faults and refused settings.
"""
