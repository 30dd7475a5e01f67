/* net: a compiled function. Made by funcgrad; C99.

   Exported(network: (f32[8,16]) -> f16[], f32[8], f32[8], f32[128])

   The code is immutable: any number of threads may run it, each with a context and an arena of its
   own. Nothing is allocated, printed or ended: each function gives a status, and the context has a
   message. Arrays are contiguous, in row-major order. */

#ifndef NET_H
#define NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NET_ABI_VERSION 1
#define NET_NUM_INPUTS 1
#define NET_NUM_OUTPUTS 4
/* Bytes of memory that a run needs, aligned to 64 bytes, as weights are. */
#define NET_ARENA_BYTES 4928
#define NET_WEIGHTS_BYTES 1152

typedef enum net_status {
    net_ok = 0,
    net_bad_argument = 1, /* a pointer is null or not aligned, or a context isn't one */
    net_small_arena = 2,  /* the arena is too small: the message says how large it should be */
    net_bad_weights = 3,  /* the weights aren't those of this function */
    net_bad_processor = 4 /* the processor lacks instructions that the code is made of */
} net_status;

typedef struct net_tensor {
    const char *name;  /* the argument's name; results are numbered */
    const char *dtype; /* "float32", "int64", "bool" (a byte), "bfloat16", "complex64", ... */
    int rank;
    const int64_t *dims;
    size_t bytes;
} net_tensor;

/* The state of one thread, in memory of the caller's. */
typedef struct net_context {
    uint64_t reserved[8];
    char message[192];
} net_context;

/* What is added to this interface doesn't change its number. */
uint32_t net_abi_version(void);

/* What NET_ARENA_BYTES is in the library, which may be made later than this header. */
size_t net_arena_bytes(void);

/* The i-th input or output; NULL if there is none. */
const net_tensor *net_input(size_t i);
const net_tensor *net_output(size_t i);

/* Prepare a context; to be called once before it runs. context_bytes: sizeof(net_context).
   weights: NULL for those in the library, or the content of a file like it. */
net_status net_init(net_context *context, size_t context_bytes, const void *weights,
                            size_t weights_bytes);

/* Compute all outputs. Outputs may not overlap inputs, weights, or the arena. */
net_status net_run(net_context *context, const void *const *inputs,
                           void *const *outputs, void *arena, size_t arena_bytes);

/* Bytes of the arena that the last run used. */
size_t net_arena_used(const net_context *context);

/* What went wrong at the last call with this context, as a text. */
const char *net_message(const net_context *context);

#ifdef __cplusplus
}
#endif

#endif
