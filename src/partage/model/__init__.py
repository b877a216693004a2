"""Frozen values with units and their algebra; nothing mutable, no input or output, no vendor."""
