"""Speaks with the kubelet of this node: device plugins, and who it says holds their units.

`messages` names what is said, `units` works out what is offered and what is advised (pure), `plugin`
serves and registers, `resources` asks the kubelet who holds what. Needs grpcio (extra `node`).
"""
