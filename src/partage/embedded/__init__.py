"""A whole cluster in one process: API server, simulated nodes, scheduler, webhook and controllers."""
