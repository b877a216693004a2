/* Stand-in for libnvidia-ml.so.1 with the functions that NVIDIA's device plugin calls beyond the agent's: see nvml_card.c. */
#include "../agent/nvml_card.c"

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlDeviceGetCudaComputeCapability(struct card *c, int *major, int *minor) { (void)c; *major = 7; *minor = 5; return 0; }
int nvmlDeviceGetNumaNodeId(struct card *c, unsigned *n) { (void)c; (void)n; return 3; }
int nvmlDeviceGetTopologyCommonAncestor(struct card *a, struct card *b, int *level) { (void)a; (void)b; *level = 40; return 0; }
