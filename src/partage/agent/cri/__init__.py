"""Stands between the kubelet and a container runtime without NRI, on the runtime interface (CRI v1).

`messages` names the little that is read, `edits` changes a request as bytes (pure), `proxy` passes all
other calls through as they are. Needs grpcio (extra `node`).
"""
