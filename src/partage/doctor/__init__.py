"""Preflight: names what is set up wrongly in a cluster or on a node, by which rule, and what to do.

Every check is a pure function from gathered facts to findings, so each is tested with a broken
input. Gathering is the command's. Where the engine knows better, it is asked: books are made of the
facts as the service would, and their quarantines, faults and refused settings are reported.
"""
