"""A node's cards for Kubernetes' dynamic resource allocation (DRA): the driver `gpu.partage.io`.

`slices` makes ResourceSlices of what the node has, as a pure function.
"""
