"""Builders and fakes, for our tests and for those of others."""
