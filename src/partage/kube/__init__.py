"""A thin typed Kubernetes API client; it knows no accelerator word."""
