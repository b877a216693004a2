"""Resolves CDI device names to edits of a container, for runtimes whose NRI cannot.

`specs` reads the host's specifications and resolves names by the runtime's own rules. `edits`
turns the edits into an adjustment, and refuses edits that an adjustment cannot express.
"""
