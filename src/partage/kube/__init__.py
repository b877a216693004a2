"""A thin typed Kubernetes API client; it knows no accelerator word.

From the bottom up: `errors` and `resources` are values; `kubeconfig`, `credentials` and `tls` give
the identity; `transport` sends one request; `client` adds verbs, types and retries; `frames` and
`mirror` turn a watch into changes without touching a socket; `watch` and `informer` run that;
`events`, `lease` and `workqueue` serve controllers.
"""
