/* $name: a compiled function. Made by funcgrad; C99.

   $signature

   The code is immutable: any number of threads may run it, each with a context and an arena of its
   own. Nothing is allocated, printed or ended: each function gives a status, and the context has a
   message. Arrays are contiguous, in row-major order. */

#ifndef ${guard}_H
#define ${guard}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${guard}_ABI_VERSION 1
#define ${guard}_NUM_INPUTS $num_inputs
#define ${guard}_NUM_OUTPUTS $num_outputs
#define ${guard}_NUM_SIZES $num_sizes
/* Bytes of memory that a run needs, aligned to 64 bytes, as weights are. */
#define ${guard}_ARENA_BYTES $arena_bytes
#define ${guard}_WEIGHTS_BYTES $weights_bytes

typedef enum ${name}_status {
    ${name}_ok = 0,
    ${name}_bad_argument = 1, /* a pointer is null or not aligned, or a context isn't one */
    ${name}_small_arena = 2,  /* the arena is too small: the message says how large it should be */
    ${name}_bad_weights = 3,  /* the weights aren't those of this function */
    ${name}_bad_processor = 4 /* the processor lacks instructions that the code is made of */
} ${name}_status;

typedef struct ${name}_tensor {
    const char *name;  /* the argument's name; results are numbered */
    const char *dtype; /* "float32", "int64", "bool" (a byte), "bfloat16", "complex64", ... */
    int rank;
    const int64_t *dims; /* the first is -1 where a size with a name counts the rows */
    size_t bytes;        /* of one row, then */
} ${name}_tensor;

/* The state of one thread, in memory of the caller's. */
typedef struct ${name}_context {
    uint64_t reserved[8];
    char message[192];
} ${name}_context;

/* What is added to this interface doesn't change its number. */
uint32_t ${name}_abi_version(void);

/* What ${guard}_ARENA_BYTES is in the library, which may be made later than this header. */
size_t ${name}_arena_bytes(void);

/* The i-th input or output; NULL if there is none. */
const ${name}_tensor *${name}_input(size_t i);
const ${name}_tensor *${name}_output(size_t i);

/* Prepare a context; to be called once before it runs. context_bytes: sizeof(${name}_context).
   weights: $weights_text */
${name}_status ${name}_init(${name}_context *context, size_t context_bytes, const void *weights,
                            size_t weights_bytes);

/* The level of processors whose code runs: the highest in the library that this one reaches. */
const char *${name}_level(const ${name}_context *context);

/* Choose another: $level_names. */
${name}_status ${name}_set_level(${name}_context *context, const char *name);

/* Say what a size with a name is, before the first run of a function that has one. */
${name}_status ${name}_set_size(${name}_context *context, const char *name, int64_t size);

/* Compute all outputs. Outputs may not overlap inputs, weights, or the arena. */
${name}_status ${name}_run(${name}_context *context, const void *const *inputs,
                           void *const *outputs, void *arena, size_t arena_bytes);

/* Bytes of the arena that the last run used. */
size_t ${name}_arena_used(const ${name}_context *context);

/* What went wrong at the last call with this context, as a text. */
const char *${name}_message(const ${name}_context *context);

#ifdef __cplusplus
}
#endif

#endif
