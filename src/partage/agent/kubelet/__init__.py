"""Serves this node's kubelet with device plugins, and asks it which containers hold units.

`messages` declares the messages, `units` computes the offer and the advice (pure), `plugin`
serves and registers, `resources` asks the kubelet for the holders of units. Needs grpcio (extra `node`).
"""
