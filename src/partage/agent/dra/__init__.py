"""A node's cards for Kubernetes' dynamic resource allocation (DRA): the driver `gpu.partage.io`.

    the node's devices ──slices──> ResourceSlices ──publishing──> the API server
    an allocated claim ──allocated──> its devices here ──admission──> prepared, written to disk and named by CDI
    kubelet ──plugin, messages──> prepare, unprepare, health

`slices` and `allocated` are pure. The grants of a claim reach its containers in the same way as the grants of a
pod's record (`partage.agent.container_admission`). `plugin` needs grpcio (extra `node`).
"""
