/* Runs a library on inputs from files, in as many threads as it is told, and writes the outputs. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "net.h"

static const void *inputs[NET_NUM_INPUTS + 1];
static unsigned char *weights;

static unsigned char *block(size_t bytes) {
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

static unsigned char *content(const char *path, size_t bytes) {
    FILE *file = fopen(path, "rb");
    unsigned char *data = block(bytes);
    if (file == NULL || fread(data, 1, bytes, file) != bytes) exit(2);
    fclose(file);
    return data;
}

static void *work(void *outputs) {
    net_context context;
    void *arena = block(net_arena_bytes());
    if (net_init(&context, sizeof context, weights, weights ? NET_WEIGHTS_BYTES : 0) != net_ok ||
        net_run(&context, inputs, outputs, arena, net_arena_bytes()) != net_ok) {
        fprintf(stderr, "%s\n", net_message(&context));
        exit(3);
    }
    free(arena);
    return NULL;
}

int main(int argc, char **argv) {
    enum { MOST = 8 };
    pthread_t threads[MOST];
    void *outputs[MOST][NET_NUM_OUTPUTS + 1];
    int n = argc > 2 ? atoi(argv[1]) : 0;
    if (n < 1 || n > MOST || net_abi_version() != NET_ABI_VERSION) return 1;
    if (argc > 3) weights = content(argv[3], NET_WEIGHTS_BYTES);
    char path[4096];
    for (int i = 0; i < NET_NUM_INPUTS; i++) {
        snprintf(path, sizeof path, "%s/in%d.bin", argv[2], i);
        inputs[i] = content(path, net_input((size_t)i)->bytes);
    }
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < NET_NUM_OUTPUTS; i++)
            outputs[t][i] = block(net_output((size_t)i)->bytes);
        if (pthread_create(&threads[t], NULL, work, outputs[t])) return 4;
    }
    for (int t = 0; t < n; t++) {
        pthread_join(threads[t], NULL);
        for (int i = 0; i < NET_NUM_OUTPUTS; i++) {
            snprintf(path, sizeof path, "%s/out%d_%d.bin", argv[2], t, i);
            FILE *file = fopen(path, "wb");
            if (file == NULL || fwrite(outputs[t][i], 1, net_output((size_t)i)->bytes, file) !=
                                    net_output((size_t)i)->bytes)
                return 5;
            fclose(file);
            free(outputs[t][i]);
        }
    }
    for (int i = 0; i < NET_NUM_INPUTS; i++) free((void *)inputs[i]);
    free(weights);
    return 0;
}
