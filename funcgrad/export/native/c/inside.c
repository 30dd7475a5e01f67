/* The file beside, which assemblers of ELF include, and other compilers embed. */
#ifdef __ELF__
extern const unsigned char ${name}_weights[] HIDDEN;
__asm__(".section .rodata\n"
        ".balign 64\n"
        ".hidden ${name}_weights\n"
        ".globl ${name}_weights\n"
        "${name}_weights:\n"
        ".incbin \"${name}.safetensors\"\n"
        ".previous\n");
#else
#ifdef __clang__
#pragma clang diagnostic ignored "-Wc23-extensions"
#endif
static const unsigned char ${name}_weights[] __attribute__((aligned(64))) = {
#embed "${name}.safetensors"
};
#endif
