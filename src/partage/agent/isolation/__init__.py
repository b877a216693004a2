"""Isolation on the card: writes the files that the enforcement library reads, and checks whether it is in force.

`native/` holds the library itself; this package is the agent's side of it. `limits` writes what a container
may use (amounts and policy by `providers`). `seats` and `account` make and read the state that processes share,
`container_dirs` and `files` arrange it on disk. `library` installs the library's file under the name of its content.
`programs` finds out which programs the library can reach. `enforcement_status` decides for each container whether its
limits are in force, and why; `statements` makes a text of it. `shared` alone opens files that containers may write.
`reading` reads procfs and containers' roots, in threads that `lookers` abandons when they hang.

Nothing here uses Kubernetes or a container runtime.
"""
