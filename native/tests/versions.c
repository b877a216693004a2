/*
 * The results of cuGetProcAddress with the library loaded: for each given name and each version, without and with streams
 * per thread, one line "NAME VERSION FLAGS FUNCTION". FUNCTION is the library's, or "-" if the library does not replace the
 * driver's.
 *
 * Usage: versions NAME... -- VERSION...
 */
#include "../src/hooks.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    __typeof__(&cuGetProcAddress_v2) find = (__typeof__(find))dlsym(library, "cuGetProcAddress_v2");
    int split = 1;
    while (split < argc && strcmp(argv[split], "--") != 0) split++;
    for (int i = 1; i < split; i++) {
        for (int k = split + 1; k < argc; k++) {
            for (uint64_t flags = 0; flags <= CU_PROC_PER_THREAD_STREAM; flags += CU_PROC_PER_THREAD_STREAM) {
                void *found = NULL;
                Dl_info info = {0};
                if (find(argv[i], &found, atoi(argv[k]), flags, NULL) != CUDA_SUCCESS) continue;
                dladdr(found, &info);
                int ours = info.dli_fname && strstr(info.dli_fname, "partage-isolation") != NULL;
                printf("%s %s %d %s\n", argv[i], argv[k], (int)flags, ours ? info.dli_sname : "-");
            }
        }
    }
    return 0;
}
