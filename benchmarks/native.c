/* Prints the seconds that loading a library takes, and that a run takes: the median of rounds. */

#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "net.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *zeros(size_t bytes) {
    void *data = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (data == NULL) exit(2);
    return memset(data, 0, (bytes + 64) / 64 * 64);
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void *found(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) exit(3);
    return symbol;
}

int main(int argc, char **argv) {
    enum { ROUNDS = 31 };
    double took[ROUNDS];
    if (argc < 3) return 1;
    long turns = atol(argv[2]);
    net_context context;

    double start = now();
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 3;
    /* (C has no conversion of an object's address to that of a function, POSIX has.) */
    net_status (*init)(net_context *, size_t, const void *, size_t);
    net_status (*run)(net_context *, const void *const *, void *const *, void *, size_t);
    const net_tensor *(*input)(size_t), *(*output)(size_t);
    *(void **)&init = found(library, "net_init");
    *(void **)&run = found(library, "net_run");
    *(void **)&input = found(library, "net_input");
    *(void **)&output = found(library, "net_output");
    if (init(&context, sizeof context, NULL, 0) != net_ok) return 4;
    printf("%.9f\n", now() - start);

    const void *inputs[NET_NUM_INPUTS + 1];
    void *outputs[NET_NUM_OUTPUTS + 1], *arena = zeros(NET_ARENA_BYTES);
    for (size_t i = 0; i < NET_NUM_INPUTS; i++) inputs[i] = zeros(input(i)->bytes);
    for (size_t i = 0; i < NET_NUM_OUTPUTS; i++) outputs[i] = zeros(output(i)->bytes);
    for (int round = 0; round < ROUNDS; round++) {
        start = now();
        for (long i = 0; i < turns; i++)
            if (run(&context, inputs, outputs, arena, NET_ARENA_BYTES) != net_ok) return 5;
        took[round] = (now() - start) / (double)turns;
    }
    qsort(took, ROUNDS, sizeof *took, ascending);
    printf("%.9f\n", took[ROUNDS / 2]);
    return 0;
}
