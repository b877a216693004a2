"""Resolves CDI device names to edits of a container, for runtimes whose NRI cannot."""
