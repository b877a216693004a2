"""A proxy between the kubelet and a container runtime without NRI, on the runtime interface (CRI v1).

`messages` declares the few messages that are read, `edits` changes a request as bytes (pure), `proxy` passes all
other calls on unchanged. Needs grpcio (extra `node`).
"""
