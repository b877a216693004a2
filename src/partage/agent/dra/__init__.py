"""A node's cards for Kubernetes' dynamic resource allocation (DRA): the driver `gpu.partage.io`.

    what the node has ──slices──> ResourceSlices ──publishing──> the API server
    an allocated claim ──allocated──> what it holds here ──admission──> prepared, written down and named by CDI
    kubelet ──plugin, messages──> prepare, unprepare, health

`slices` and `allocated` are pure. What a claim holds reaches its containers by the same way as what a pod's record
gives (`partage.agent.container_admission`). `plugin` needs grpcio (extra `node`).
"""
