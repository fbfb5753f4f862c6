// To be preloaded into programs for aarch64: a processor that says that it lacks some instructions. Emulators have none to
// choose that lacks those for CRC-32C.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/auxv.h>

// MOONCAKE_HIDDEN_INSTRUCTIONS: bits of AT_HWCAP, hexadecimal.
unsigned long getauxval(unsigned long type) {
    unsigned long (*real)(unsigned long) = (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT, "getauxval");
    const char *hidden = getenv("MOONCAKE_HIDDEN_INSTRUCTIONS");
    unsigned long found = real(type);
    return type == AT_HWCAP && hidden ? found & ~strtoul(hidden, NULL, 16) : found;
}
