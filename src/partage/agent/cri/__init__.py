"""A proxy between the kubelet and a container runtime without NRI, on the runtime interface (CRI v1).

`edits` is pure; `proxy` passes all calls but two on unchanged. Needs grpcio (extra `node`).
"""
