"""The scheduler service: what kube-scheduler asks, by its plugin or as its extender. `now` is always seconds on a steady clock."""
