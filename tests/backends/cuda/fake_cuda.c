// A libcuda of the true signatures on the host's memory. Kernels are started by a function of the
// test, which gets the kernel's name, its shape, and its parameters as the driver would. What is
// started in a capture becomes a node. Every address must lie in memory that is allocated.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule, *CUstream;
typedef uintptr_t CUdeviceptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_PTX = 218,
       NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900,
       UPDATE_FAILURE = 910 };
enum { MOST = 4096, MOST_PARAMS = 64 };

typedef struct { char name[256]; int params; } function_t;
typedef struct { char *text; function_t *functions[64]; int count; } module_t;
typedef struct node {
  function_t *f; unsigned grid, block; uintptr_t params[MOST_PARAMS];  // a launch
  int (*call)(void *); unsigned char data[256]; size_t size;           // or a library's call
} node_t;
typedef struct { int count; node_t *nodes[1024]; } graph_t;

static int version = 13000, devices = 1, sticky, started, live, modules, graphs, links, launches,
    replays, contexts;
static size_t room = (size_t)1 << 30, used;
static CUcontext current;
static graph_t *capture;
static CUstream captured;  // the stream that is
static int streams;
static struct { uintptr_t at; size_t size; CUcontext of; } blocks[MOST];
static int (*start)(const char *, unsigned, unsigned, void **);

void fake_set(int v, int n, size_t bytes) {
  version = v; devices = n; room = bytes; sticky = OK; capture = NULL; captured = NULL; launches = replays = links = 0;
}
void fake_start(int (*f)(const char *, unsigned, unsigned, void **)) { start = f; }
void fake_break(int status) { sticky = status; }
void fake_leave(void) { current = NULL; }
int fake_live(void) { return live; }
int fake_modules(void) { return modules; }
int fake_graphs(void) { return graphs; }
int fake_launches(void) { return launches; }
int fake_replays(void) { return replays; }
int fake_links(void) { return links; }
int fake_contexts(void) { return contexts; }

static int holds(uintptr_t at, size_t n) {
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at && blocks[i].of == current && blocks[i].at <= at &&
        at + n <= blocks[i].at + blocks[i].size) return 1;
  return 0;
}
static int is_stream(CUstream s) { return s == (void *)0x57 || (streams && s == (void *)0x58); }
static CUresult ready(void) { return current ? sticky : INVALID_CONTEXT; }
static node_t *record(void) {
  node_t *n = calloc(1, sizeof *n);
  capture->nodes[capture->count++] = n;
  return n;
}
// What a library does on the stream: at once, or as a node.
CUresult fake_do(CUstream s, int (*call)(void *), const void *data, size_t size) {
  if (!is_stream(s) || size > sizeof ((node_t *)0)->data) return INVALID_VALUE;
  if (s != captured) { unsigned char copy[256]; memcpy(copy, data, size); return call(copy); }
  node_t *n = record();
  n->call = call;
  memcpy(n->data, data, n->size = size);
  return OK;
}
int fake_holds(uintptr_t at, size_t n) { return holds(at, n); }

CUresult cuInit(unsigned flags) { started = 1; return flags ? INVALID_VALUE : OK; }
CUresult cuDriverGetVersion(int *v) { *v = version; return OK; }
CUresult cuDeviceGetCount(int *n) { *n = devices; return started ? OK : 3; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return i < devices ? OK : 101; }
CUresult cuDeviceGetAttribute(int *v, int which, CUdevice d) {
  if (which != 75 && which != 76) return INVALID_VALUE;
  *v = which == 75 ? 9 : 0;
  return OK;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  *c = (void *)(uintptr_t)(0xC0 + d);
  contexts++;
  return OK;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { contexts--; return OK; }
CUresult cuCtxSetCurrent(CUcontext c) { current = c; return OK; }
static CUcontext pushed[8];
static int depth;
CUresult cuCtxPushCurrent_v2(CUcontext c) {
  if (depth == 8) return INVALID_VALUE;
  pushed[depth++] = current;
  current = c;
  return OK;
}
CUresult cuCtxPopCurrent_v2(CUcontext *c) {
  if (!depth) return INVALID_CONTEXT;
  *c = current;
  current = pushed[--depth];
  return OK;
}
CUresult cuGetErrorName(CUresult e, const char **name) {
  *name = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
        : e == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
        : e == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
        : e == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
        : e == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX"
        : e == CAPTURE_UNSUPPORTED ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        : e == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
  return *name ? OK : INVALID_VALUE;
}
CUresult cuStreamCreate(CUstream *s, unsigned flags) {
  *s = (void *)(flags ? 0x58 : 0x57);
  streams += flags;
  return flags > 1 || streams > 1 ? INVALID_VALUE : ready();
}
CUresult cuStreamDestroy_v2(CUstream s) {
  if (!is_stream(s)) return INVALID_VALUE;
  streams -= s == (void *)0x58;
  return OK;
}
CUresult cuStreamSynchronize(CUstream s) {
  if (!is_stream(s)) return INVALID_VALUE;
  return s == captured ? CAPTURE_UNSUPPORTED : ready();
}

// ---- memory

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
  if (!current) return INVALID_CONTEXT;
  if (!n) return INVALID_VALUE;
  if (used + n > room) return OUT_OF_MEMORY;
  *p = (CUdeviceptr)aligned_alloc(256, (n + 255) / 256 * 256);
  memset((void *)*p, 0xFF, n);
  for (int i = 0; i < MOST; i++)
    if (!blocks[i].at) { blocks[i].at = *p; blocks[i].size = n; blocks[i].of = current; break; }
  used += n;
  live++;
  return OK;
}
CUresult cuMemFree_v2(CUdeviceptr p) {
  if (!current) return INVALID_CONTEXT;
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at == p && blocks[i].of == current) {
      used -= blocks[i].size;
      blocks[i].at = 0;
      free((void *)p);
      live--;
      return OK;
    }
  return INVALID_VALUE;
}
CUresult cuMemAllocHost_v2(void **p, size_t n) { *p = malloc(n); live++; return ready(); }
CUresult cuMemFreeHost(void *p) { free(p); live--; return current ? OK : INVALID_CONTEXT; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) {
  if (!holds(to, n) || s != (void *)0x57) return INVALID_VALUE;
  if (s == captured) return CAPTURE_UNSUPPORTED;  // a node, in truth, that copies when replayed
  memcpy((void *)to, from, n);
  return ready();
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) {
  if (!holds(from, n) || s != (void *)0x57) return INVALID_VALUE;
  if (s == captured) return CAPTURE_UNSUPPORTED;
  memcpy(to, (void *)from, n);
  return ready();
}
typedef struct { CUdeviceptr to, from; size_t n; } copy_t;
static int copy(void *data) {
  copy_t *c = data;
  if (!holds(c->to, c->n) || !holds(c->from, c->n)) return ILLEGAL_ADDRESS;
  memmove((void *)c->to, (void *)c->from, c->n);
  return OK;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  copy_t c = {to, from, n};
  return sticky ? sticky : fake_do(s, copy, &c, sizeof c);
}

typedef struct { CUdeviceptr to; unsigned value; size_t n; int width; } fill_t;
static int fill_with(void *data) {
  fill_t *f = data;
  if (!holds(f->to, f->n * f->width)) return ILLEGAL_ADDRESS;
  if (f->width == 1) memset((void *)f->to, f->value, f->n);
  else for (size_t i = 0; i < f->n; i++) ((unsigned *)f->to)[i] = f->value;
  return OK;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream s) {
  fill_t f = {to, value, n, 1};
  return sticky ? sticky : fake_do(s, fill_with, &f, sizeof f);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream s) {
  fill_t f = {to, value, n, 4};
  return sticky ? sticky : fake_do(s, fill_with, &f, sizeof f);
}

// ---- modules

CUresult cuLinkCreate_v2(unsigned n, int *options, void **values, void **state) {
  if (n != 2 || options[0] != 5 || options[1] != 6) return INVALID_VALUE;
  char **made = calloc(2, sizeof(char *));
  made[1] = values[0];  // where errors are told
  *state = made;
  return ready();
}
CUresult cuLinkAddData_v2(char **state, int type, void *data, size_t size, const char *name,
                          unsigned n, int *options, void **values) {
  if (type != 1 || strlen(data) + 1 != size) return INVALID_VALUE;
  if (!strstr(data, ".target sm_90")) { strcpy(state[1], "ptxas: no target"); return INVALID_PTX; }
  state[0] = malloc(size + 5);
  strcpy(state[0], "CUBIN");
  strcpy(state[0] + 5, data);
  return OK;
}
CUresult cuLinkComplete(char **state, void **image, size_t *size) {
  *image = state[0];
  *size = strlen(state[0]) + 1;
  links++;
  return OK;
}
CUresult cuLinkDestroy(char **state) { free(state[0]); free(state); return OK; }
CUresult cuModuleLoadData(module_t **m, const char *image) {
  if (strncmp(image, "CUBIN", 5)) return INVALID_VALUE;
  *m = calloc(1, sizeof(module_t));
  (*m)->text = strdup(image);
  modules++;
  return ready();
}
CUresult cuModuleUnload(module_t *m) {
  if (!current) return INVALID_CONTEXT;
  for (int i = 0; i < m->count; i++) free(m->functions[i]);
  free(m->text);
  free(m);
  modules--;
  return OK;
}
CUresult cuModuleGetFunction(function_t **f, module_t *m, const char *name) {
  char entry[300];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  const char *at = strstr(m->text, entry);
  if (!at) return NOT_FOUND;
  *f = calloc(1, sizeof(function_t));
  m->functions[m->count++] = *f;
  snprintf((*f)->name, sizeof (*f)->name, "%s", name);
  const char *end = strchr(at, ')');
  for (at = strstr(at, ".param"); at && at < end; at = strstr(at + 1, ".param")) (*f)->params++;
  return OK;
}

// ---- launches and graphs

static CUresult run(node_t *n) {
  if (n->call) return n->call(n->data);
  void *slots[MOST_PARAMS];
  for (int i = 0; i < n->f->params; i++) {
    if (!holds(n->params[i], 1)) return sticky = ILLEGAL_ADDRESS;
    slots[i] = &n->params[i];
  }
  return start(n->f->name, n->grid, n->block, slots);
}
CUresult cuLaunchKernel(function_t *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
                        void **extra) {
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || !is_stream(stream) || extra ||
      bx > 1024 || !gx || f->params > MOST_PARAMS)
    return INVALID_VALUE;
  if (sticky) return sticky;
  node_t *n = stream == captured ? record() : calloc(1, sizeof *n);
  n->f = f; n->grid = gx; n->block = bx;
  for (int i = 0; i < f->params; i++) n->params[i] = *(uintptr_t *)params[i];
  if (stream == captured) return OK;
  launches++;
  CUresult status = run(n);
  free(n);
  return status;
}
static void drop(graph_t *g) {
  for (int i = 0; i < g->count; i++) free(g->nodes[i]);
  free(g);
  graphs--;
}
CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
  if (mode != 1 || capture || !is_stream(s)) return INVALID_VALUE;
  captured = s;
  capture = calloc(1, sizeof *capture);
  graphs++;
  return ready();
}
CUresult cuStreamEndCapture(CUstream s, graph_t **g) {
  if (s != captured) return INVALID_VALUE;
  *g = capture;
  capture = captured = NULL;
  if (!sticky) return OK;
  drop(*g);
  *g = NULL;
  return sticky;
}
CUresult cuGraphDestroy(graph_t *g) { drop(g); return OK; }
static void fill(graph_t *to, graph_t *from) {
  to->count = from->count;
  for (int i = 0; i < from->count; i++)
    to->nodes[i] = memcpy(malloc(sizeof(node_t)), from->nodes[i], sizeof(node_t));
}
CUresult cuGraphInstantiateWithFlags(graph_t **e, graph_t *g, unsigned long long flags) {
  fill(*e = calloc(1, sizeof **e), g);
  graphs++;
  return flags ? INVALID_VALUE : ready();
}
CUresult cuGraphExecUpdate_v2(graph_t *e, graph_t *g, void *info) {
  if (e->count != g->count) return UPDATE_FAILURE;
  for (int i = 0; i < g->count; i++)
    if (e->nodes[i]->f != g->nodes[i]->f) return UPDATE_FAILURE;
  for (int i = 0; i < e->count; i++) free(e->nodes[i]);
  fill(e, g);
  return OK;
}
CUresult cuGraphExecDestroy(graph_t *e) { drop(e); return current ? OK : INVALID_CONTEXT; }
CUresult cuGraphLaunch(graph_t *e, CUstream s) {
  if (s != (void *)0x57) return INVALID_VALUE;
  replays++;
  CUresult status = ready();
  for (int i = 0; i < e->count && !status; i++) status = run(e->nodes[i]);
  return status;
}
