"""Does the container runtime's part of CDI where its NRI cannot: names of devices become edits of a container.

`specs` reads the host's specifications and finds what names stand for, by the runtime's own rules; `edits`
puts that into an adjustment, and refuses what an adjustment cannot say.
"""
