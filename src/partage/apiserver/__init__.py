"""A small Kubernetes-style API server, for the embedded cluster and for tests.

State is in memory. The server behaves like the genuine one where clients and manifests depend on it, so genuine
kubectl binaries, controllers and webhooks work against it. It schedules nothing and runs nothing. Its embedder
acts as scheduler, kubelet and controllers.

    server = ApiServer(Settings(relaxed_names=True))
    server.admission.mutators.append(my_mutator)
    async with serve(server, port=8001) as url:
        write_kubeconfig(path, url)
        ...

Not supported, on purpose: CEL (the server stores webhooks' matchConditions, ValidatingAdmissionPolicies and
definitions' validation rules, and does not interpret them; `Admission.validators` takes hooks in their place),
authorization (reviews allow everything to every authenticated user), exec, attach and port-forward, protobuf
and CBOR answers (the server reads protobuf bodies), conversion webhooks, LimitRange, reinvocation of webhooks,
token volumes in pods, ephemeral containers and resizing, impersonation, admission by RuntimeClass (a pod may
name any), the taint of new nodes that are not ready, formats of texts in custom objects, warnings about
values of pods or old versions, and other columns than name and age for endpoints, volumes and their claims, storage
classes, ingresses, network policies, controller revisions and admission policies.

The server records field ownership from the first write that names a manager. All writes of kubectl name one.
"""

from partage.apiserver.admission import ADMIN, Admission, Refused, Review, User
from partage.apiserver.deleting import DeleteOptions
from partage.apiserver.persistence import UnreadableState, write_kubeconfig
from partage.apiserver.podparts import LogProvider, LogRequest
from partage.apiserver.server import ApiServer, Settings, ambient, serve
from partage.apiserver.status import ApiError
from partage.apiserver.storage import Change, Compacted, Record, Store

__all__ = [
    "ADMIN",
    "Admission",
    "ApiError",
    "ApiServer",
    "Change",
    "Compacted",
    "DeleteOptions",
    "LogProvider",
    "LogRequest",
    "Record",
    "Refused",
    "Review",
    "Settings",
    "Store",
    "UnreadableState",
    "User",
    "ambient",
    "serve",
    "write_kubeconfig",
]
