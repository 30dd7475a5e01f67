/* What joins the compiled code of $name to its C interface, and stands for what code asks of the
   process that it usually runs in: a loop over tasks, and memory for them. */

#if defined(__GNUC__) && !defined(_WIN32)
#pragma GCC visibility push(default)
#include "$name.h"
#pragma GCC visibility pop
#else
#include "$name.h"
#endif

#ifndef __wasm__
#include <setjmp.h>
#endif
#include <stdio.h>
#include <string.h>

/* Names of compiled code, and of what it calls. */
#define fg_scratch_take ${name}_fg_scratch_take
#define fg_scratch_give ${name}_fg_scratch_give
#define fg_pool_limit ${name}_fg_pool_limit
#define fg_parallel_for ${name}_fg_parallel_for
#define fg_parallel_asking ${name}_fg_parallel_asking
#define fg_poll ${name}_fg_poll

#ifdef _WIN32
#define HIDDEN
#else
#define HIDDEN __attribute__((visibility("hidden")))
#endif
/* WebAssembly has no longjmp: what would be a status there is a trap, an exception in JavaScript. */
#ifdef __wasm__
typedef int place;
#define RETURNED_TO(where) (where = 0)
#define RETURN_TO(where) __builtin_trap()
#else
typedef jmp_buf place;
#define RETURNED_TO(where) setjmp(where)
#define RETURN_TO(where) longjmp(where, 1)
#endif
#define MAGIC UINT64_C(0x66756e6367726164)
#define BLOCK 64

enum { CONTEXT_MAGIC, CONTEXT_WEIGHTS, CONTEXT_USED, CONTEXT_LEVEL, CONTEXT_ROWS };

typedef int32_t program(const void *const *inputs, void *const *outputs, void *arena,
                        const void *const *constants, void *callback, void *comms);

/* ---- memory for tasks: a stack in the arena */

typedef struct block {
    struct block *below;
    char *end;
    int free;
} block;

static __thread struct {
    char *begin, *end, *most;
    block *top;
    uint64_t wanted;
    place *out;
} scratch;

HIDDEN void *fg_scratch_take(int64_t bytes) {
    char *at = scratch.top ? scratch.top->end : scratch.begin;
    uint64_t need = BLOCK + ((uint64_t)bytes + BLOCK - 1) / BLOCK * BLOCK;
    if (need > (uint64_t)(scratch.end - at)) {
        scratch.wanted = (uint64_t)(at - scratch.begin) + need;
        RETURN_TO(*scratch.out);
    }
    block *b = (block *)(void *)at;
    b->below = scratch.top;
    b->end = at + need;
    b->free = 0;
    scratch.top = b;
    if (b->end > scratch.most) scratch.most = b->end;
    return at + BLOCK;
}

HIDDEN void fg_scratch_give(void *data) {
    ((block *)(void *)((char *)data - BLOCK))->free = 1;
    while (scratch.top && scratch.top->free) scratch.top = scratch.top->below;
}

/* ---- loops over tasks, in the same parts as with several threads */

HIDDEN int32_t fg_pool_limit = 0; /* threads beside the caller's */

typedef void task(void *context, int64_t begin, int64_t end);

HIDDEN void fg_parallel_for(task *run, void *context, int64_t n, int64_t grain) {
    if (grain < 1) grain = 1;
    for (int64_t i = 0; i < n; i += grain) run(context, i, n - i > grain ? i + grain : n);
}

HIDDEN void fg_parallel_asking(task *run, void *context, int64_t n, int64_t grain, void *words) {
    (void)words;
    fg_parallel_for(run, context, n, grain);
}

HIDDEN int32_t fg_poll(void *words) {
    (void)words;
    return 0;
}

/* ---- arrays */

$tables

/* ---- code, for each level of processors, for so many rows at a time, from the most to one; and
   where the arrays that it reads begin in the weights */

struct code {
    program *run;
    size_t rows, num_constants;
    const size_t *constants;
};

struct level {
    const char *name;
    int (*lacks)(void); /* whether the processor lacks instructions */
    struct code codes[$blocks];
};

$codes

static const size_t captured[] = {$captured};

#define NUM_LEVELS (sizeof levels / sizeof *levels)
#define NUM_CAPTURED $num_captured
#define MOST_CONSTANTS $most_constants
/* As variables, since compilers warn of loops to a constant 0. */
static const size_t num_captured = NUM_CAPTURED, num_inputs = ${guard}_NUM_INPUTS,
                    num_outputs = ${guard}_NUM_OUTPUTS, program_arena = $program_arena,
                    needed_arena = ${guard}_ARENA_BYTES;
static const char size_name[] = "$size_name"; /* of what counts rows, or empty */
#define WEIGHTS_DIGEST UINT64_C($weights_digest)
#define WEIGHTS_HEAD $weights_head

$inside
uint32_t ${name}_abi_version(void) { return ${guard}_ABI_VERSION; }

size_t ${name}_arena_bytes(void) { return needed_arena; }

const ${name}_tensor *${name}_input(size_t i) {
    return i < num_inputs ? &inputs_table[i] : NULL;
}

const ${name}_tensor *${name}_output(size_t i) {
    return i < num_outputs ? &outputs_table[i] : NULL;
}

/* ---- contexts */

static ${name}_status fail(${name}_context *context, ${name}_status status, const char *text) {
    snprintf(context->message, sizeof context->message, "$name: %s", text);
    return status;
}

static int is_aligned(const void *pointer, size_t bytes) {
    return pointer != NULL && (uintptr_t)pointer % bytes == 0;
}

/* FNV-1a of the beginning of the weights, which says what arrays are in them. */
static uint64_t digest(const unsigned char *bytes, size_t n) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

${name}_status ${name}_init(${name}_context *context, size_t context_bytes, const void *weights,
                            size_t weights_bytes) {
    if (context == NULL || context_bytes < sizeof *context) return ${name}_bad_argument;
    memset(context, 0, sizeof *context);
    size_t level = NUM_LEVELS;
    while (level > 0 && levels[level - 1].lacks()) level--;
    if (level == 0)
        return fail(context, ${name}_bad_processor, "the processor lacks instructions of $cpu");
    if (weights == NULL) {
        weights = $default_weights;
        weights_bytes = weights == NULL ? 0 : ${guard}_WEIGHTS_BYTES;
    }
    if (weights_bytes != ${guard}_WEIGHTS_BYTES || !is_aligned(weights, BLOCK) ||
        digest(weights, WEIGHTS_HEAD) != WEIGHTS_DIGEST)
        return fail(context, ${name}_bad_weights,
                    "weights must be the file $name.safetensors, aligned to 64 bytes");
    context->reserved[CONTEXT_MAGIC] = MAGIC;
    context->reserved[CONTEXT_WEIGHTS] = (uint64_t)(uintptr_t)weights;
    context->reserved[CONTEXT_LEVEL] = level - 1;
    context->reserved[CONTEXT_ROWS] = !*size_name;
    return ${name}_ok;
}

static int is_ready(const ${name}_context *context) {
    return context != NULL && context->reserved[CONTEXT_MAGIC] == MAGIC;
}

const char *${name}_level(const ${name}_context *context) {
    return is_ready(context) ? levels[context->reserved[CONTEXT_LEVEL]].name : "";
}

${name}_status ${name}_set_level(${name}_context *context, const char *name) {
    if (!is_ready(context)) return ${name}_bad_argument;
    for (size_t i = 0; name != NULL && i < NUM_LEVELS; i++)
        if (strcmp(name, levels[i].name) == 0) {
            if (levels[i].lacks())
                return fail(context, ${name}_bad_processor,
                            "the processor lacks instructions of the level");
            context->reserved[CONTEXT_LEVEL] = i;
            return ${name}_ok;
        }
    return fail(context, ${name}_bad_argument, "the library has no code for the level");
}

const char *${name}_message(const ${name}_context *context) {
    return context == NULL ? "$name: the context is NULL" : context->message;
}

size_t ${name}_arena_used(const ${name}_context *context) {
    return context == NULL ? 0 : (size_t)context->reserved[CONTEXT_USED];
}

/* ---- runs */

${name}_status ${name}_set_size(${name}_context *context, const char *name, int64_t size) {
    if (!is_ready(context)) return ${name}_bad_argument;
    if (name == NULL || !*size_name || strcmp(name, size_name) != 0)
        return fail(context, ${name}_bad_argument, "there is no size of the name");
    if (size < 1 || size >= INT64_C(1) << 40)
        return fail(context, ${name}_bad_argument, "the size has to be at least 1, and below 2^40");
    $size_checks
    context->reserved[CONTEXT_ROWS] = (uint64_t)size;
    return ${name}_ok;
}

static ${name}_status check(${name}_context *context, const void *const *inputs,
                            void *const *outputs, const void *arena, size_t arena_bytes) {
    char text[128];
    if (context->reserved[CONTEXT_ROWS] == 0)
        return fail(context, ${name}_bad_argument, "${name}_set_size has to say what a size is");
    if (inputs == NULL && num_inputs > 0)
        return fail(context, ${name}_bad_argument, "inputs is NULL");
    if (outputs == NULL && num_outputs > 0)
        return fail(context, ${name}_bad_argument, "outputs is NULL");
    for (size_t i = 0; i < num_inputs; i++)
        if (!is_aligned(inputs[i], input_alignment[i])) {
            snprintf(text, sizeof text, "input %d (%.64s) is NULL or not aligned to its dtype",
                     (int)i, inputs_table[i].name);
            return fail(context, ${name}_bad_argument, text);
        }
    for (size_t i = 0; i < num_outputs; i++)
        if (!is_aligned(outputs[i], output_alignment[i])) {
            snprintf(text, sizeof text, "output %d is NULL or not aligned to its dtype", (int)i);
            return fail(context, ${name}_bad_argument, text);
        }
    if (needed_arena && !is_aligned(arena, BLOCK))
        return fail(context, ${name}_bad_argument, "the arena is NULL or not aligned to 64 bytes");
    if (arena_bytes < program_arena) {
        snprintf(text, sizeof text, "the arena has %zu bytes, needed are %zu", arena_bytes,
                 needed_arena);
        return fail(context, ${name}_small_arena, text);
    }
    return ${name}_ok;
}

/* Compute some rows, from a first one on. */
static void compute(const struct code *code, const char *weights, const void *const *inputs,
                    void *const *outputs, void *arena, size_t row) {
    const void *places[NUM_CAPTURED + ${guard}_NUM_INPUTS + 1], *constants[MOST_CONSTANTS + 1];
    void *results[${guard}_NUM_OUTPUTS + 1];
    for (size_t i = 0; i < num_captured; i++) places[i] = weights + captured[i];
    for (size_t i = 0; i < code->num_constants; i++) constants[i] = weights + code->constants[i];
    for (size_t i = 0; i < num_inputs; i++)
        places[num_captured + i] = (const char *)inputs[i] + row * input_step[i];
    for (size_t i = 0; i < num_outputs; i++)
        results[i] = (char *)outputs[i] + row * output_step[i];
    code->run(places, results, arena, constants, NULL, NULL);
}

static void compute_all(const ${name}_context *context, const void *const *inputs,
                        void *const *outputs, void *arena) {
    const struct code *code = levels[context->reserved[CONTEXT_LEVEL]].codes;
    const char *weights = (const char *)(uintptr_t)context->reserved[CONTEXT_WEIGHTS];
    size_t rows = (size_t)context->reserved[CONTEXT_ROWS];
    for (size_t row = 0; row < rows; row += code->rows) {
        /* What is left is computed with rows before it, once more, or else by code for fewer. */
        while (code->rows > rows - row) {
            if (row >= code->rows && rows - row > code[1].rows)
                row = rows - code->rows;
            else
                code++;
        }
        compute(code, weights, inputs, outputs, arena, row);
    }
}

${name}_status ${name}_run(${name}_context *context, const void *const *inputs,
                           void *const *outputs, void *arena, size_t arena_bytes) {
    place out;
    if (!is_ready(context)) return ${name}_bad_argument;
    context->message[0] = 0;
    ${name}_status status = check(context, inputs, outputs, arena, arena_bytes);
    if (status != ${name}_ok) return status;
    scratch.begin = (char *)arena + (arena ? program_arena : 0);
    scratch.end = (char *)arena + (arena ? arena_bytes / BLOCK * BLOCK : 0);
    scratch.most = scratch.begin;
    scratch.top = NULL;
    scratch.out = &out;
    if (RETURNED_TO(out)) {
        char text[128];
        snprintf(text, sizeof text, "the arena is too small: it needs at least %zu bytes",
                 (size_t)(program_arena + scratch.wanted));
        return fail(context, ${name}_small_arena, text);
    }
    compute_all(context, inputs, outputs, arena);
    context->reserved[CONTEXT_USED] = program_arena + (uint64_t)(scratch.most - scratch.begin);
    return ${name}_ok;
}
