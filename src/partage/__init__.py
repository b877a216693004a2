"""Partage: fractions of accelerators on Kubernetes, four protocols over one pool and one ledger."""

__version__ = "0.1.0"
