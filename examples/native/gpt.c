/* Writes text by the library that native_gpt.py makes: gpt <seed> <characters>. */

#include <stdio.h>
#include <stdlib.h>

#include "gpt.h"

static void *block(size_t bytes) {
    void *data = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (data == NULL) exit(2);
    return data;
}

static void put_utf8(int32_t c) {
    if (c < 0x80) {
        putchar(c);
    } else {
        if (c < 0x800) {
            putchar(0xc0 | c >> 6);
        } else {
            putchar(0xe0 | c >> 12);
            putchar(0x80 | (c >> 6 & 63));
        }
        putchar(0x80 | (c & 63));
    }
}

int main(int argc, char **argv) {
    int32_t seed = argc > 1 ? atoi(argv[1]) : 0;
    size_t length = argc > 2 ? (size_t)atoi(argv[2]) : 400, context = (size_t)gpt_input(0)->dims[2];
    int32_t *text = block((length + 1) * sizeof *text), character, position, drawn_with, drawn;
    void *arena = block(gpt_arena_bytes());
    char *cache = block(gpt_input(0)->bytes), *next = block(gpt_input(0)->bytes);
    for (size_t i = 0; i < gpt_input(0)->bytes; i++) cache[i] = 0;

    gpt_context c;
    if (gpt_init(&c, sizeof c, NULL, 0) != gpt_ok) return fprintf(stderr, "%s\n", c.message), 1;
    text[0] = '\n';
    for (size_t n = 1, begin = 0, fed = 0; n <= length;) {
        /* When the cache is full, it goes on from the second half of what it has seen. */
        if (fed - begin == context) fed = begin = n - context / 2;
        character = text[fed];
        position = (int32_t)(fed - begin);
        drawn_with = seed + (int32_t)fed;
        const void *inputs[] = {cache, &character, &position, &drawn_with};
        void *outputs[] = {next, &drawn};
        if (gpt_run(&c, inputs, outputs, arena, gpt_arena_bytes()) != gpt_ok)
            return fprintf(stderr, "%s\n", gpt_message(&c)), 1;
        char *swapped = cache;
        cache = next;
        next = swapped;
        if (++fed == n) put_utf8(text[n++] = drawn);
    }
    putchar('\n');
    free(text);
    free(arena);
    free(cache);
    free(next);
    return 0;
}
