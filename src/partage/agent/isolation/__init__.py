"""Isolation on the card: writes the files that the enforcement library (`native/`) reads, and checks whether it is in force.

`shared` alone opens files that containers may write. `reading` reads procfs and containers' roots, in threads that
`lookers` abandons when they hang. Nothing here uses Kubernetes or a container runtime.
"""
