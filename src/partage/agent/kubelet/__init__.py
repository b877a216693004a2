"""Serves this node's kubelet with device plugins, and asks it which containers hold units. Needs grpcio (extra `node`)."""
