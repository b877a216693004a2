"""Reconcilers: pure plans and thin loops."""
