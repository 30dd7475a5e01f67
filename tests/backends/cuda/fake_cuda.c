// A libcuda of the true signatures on the host's memory. Kernels are started by a function of the
// test, which gets the kernel's name, its shape, and its parameters as the driver would.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
typedef uintptr_t CUdeviceptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       LAUNCH_FAILED = 719 };

static int version = 13000, devices = 1, sticky = OK, started, live, modules;
static size_t room = (size_t)1 << 30;
static CUcontext current;
static int (*start)(const char *, unsigned, unsigned, void **);

void fake_set(int v, int n, size_t bytes) { version = v; devices = n; room = bytes; sticky = OK; }
void fake_start(int (*f)(const char *, unsigned, unsigned, void **)) { start = f; }
void fake_break(void) { sticky = LAUNCH_FAILED; }
int fake_live(void) { return live; }
int fake_modules(void) { return modules; }

CUresult cuInit(unsigned flags) { started = 1; return flags ? INVALID_VALUE : OK; }
CUresult cuDriverGetVersion(int *v) { *v = version; return OK; }
CUresult cuDeviceGetCount(int *n) { *n = devices; return started ? OK : 3; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return i < devices ? OK : 101; }
CUresult cuDeviceGetAttribute(int *v, int which, CUdevice d) {
  if (which != 75 && which != 76) return INVALID_VALUE;
  *v = which == 75 ? 9 : 0;
  return OK;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (void *)0xC0; return OK; }
CUresult cuCtxSetCurrent(CUcontext c) { current = c; return OK; }
CUresult cuCtxSynchronize(void) { return current ? sticky : INVALID_CONTEXT; }
CUresult cuGetErrorName(CUresult e, const char **name) {
  *name = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
        : e == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
        : e == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
  return *name ? OK : INVALID_VALUE;
}
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
  if (!current) return INVALID_CONTEXT;
  if (n > room) return OUT_OF_MEMORY;
  *p = (CUdeviceptr)aligned_alloc(256, (n + 255) / 256 * 256);
  memset((void *)*p, 0xFF, n);
  live++;
  return OK;
}
CUresult cuMemFree_v2(CUdeviceptr p) { free((void *)p); live--; return OK; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) {
  memcpy((void *)to, from, n);
  return sticky;
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) {
  memcpy(to, (void *)from, n);
  return sticky;
}
CUresult cuModuleLoadData(CUmodule *m, const void *image) {
  if (!strstr(image, ".target sm_90")) return INVALID_VALUE;
  *m = strdup(image);
  modules++;
  return OK;
}
CUresult cuModuleUnload(CUmodule m) { free(m); modules--; return OK; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  if (!strstr(m, name)) return NOT_FOUND;
  *f = strdup(name);
  return OK;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
                        void **extra) {
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra || bx > 1024 || !gx)
    return INVALID_VALUE;
  return sticky ? sticky : start(f, gx, bx, params);
}
