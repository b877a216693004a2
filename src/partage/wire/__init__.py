"""The only translation between Kubernetes documents and the model."""
