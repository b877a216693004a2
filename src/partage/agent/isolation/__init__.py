"""Isolation on the card: the files that the enforcement library reads, and whether it is in force.

`native/` holds the library itself; this package is the agent's side of it. `limits` writes what a container
may use (amounts and policy by `providers`), `seats` and `account` make and read what processes share, `container_dirs` and `files` lay it out, `library`
installs the file under the name of its content, `programs` tells which programs the library can reach, `enforcement_status`
says per container: in force, yes or no, and why, which `statements` puts into words. Files that containers may write are opened by
`shared` alone; procfs and containers' roots are read by `reading`, in threads that `lookers` gives up where they hang.

Nothing here talks to Kubernetes or to a container runtime.
"""
