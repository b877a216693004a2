"""Builders of documents, and fakes of what is around Partage: clocks, an API server, the kubelet, NVML, a runtime."""
