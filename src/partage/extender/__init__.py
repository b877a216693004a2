"""The kube-scheduler extender service."""
