// A libcuda of the true signatures on the host's memory. Kernels are started by a function of the
// test, which gets the kernel's name, its shape, and its parameters as the driver would. What is
// started in a capture becomes a node. Every address must lie in memory that is allocated.
//
// Work is done at once, or, by `fake_lazy`, as late as may be: what some streams are given waits
// until a stream that needs it, or the host, asks for it by an event or by waiting. So a wait that
// is missing gives another result.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule;
typedef uintptr_t CUdeviceptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NO_PEERS = 217,
       INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700, ENABLED_ALREADY = 704, LAUNCH_FAILED = 719,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905,
       CAPTURED_EVENT = 907, UPDATE_FAILURE = 910 };
enum { MOST = 4096, MOST_PARAMS = 64, MOST_STREAMS = 256, MOST_LANES = 4 };
enum { LAZY_COMPUTE = 1, LAZY_OTHERS = 2 };

typedef struct { char name[256]; int params; } function_t;
typedef struct { char *text; function_t *functions[64]; int count; } module_t;
typedef struct { struct node **nodes; int count, done, room; } queue_t;
typedef struct { int id, lanes; queue_t lane[MOST_LANES]; } graph_t;
typedef struct { CUcontext of; unsigned flags; queue_t work; graph_t *capture; int lane; } stream_t;
typedef stream_t *CUstream;
typedef struct { CUcontext of; unsigned flags; queue_t *work; int at, capture, lane; double time; }
    *CUevent;
typedef struct node {
  CUcontext of;
  function_t *f; unsigned grid, block; uintptr_t params[MOST_PARAMS];     // a launch
  int (*call)(void *); unsigned char data[256]; size_t size; void *kept;  // or a library's call
  graph_t *graph;                                                         // or a graph
  CUevent event;                                                          // or a time to be noted
  int waits; queue_t *on; int lane, at;                                   // or a wait
} node_t;

static int version = 13000, devices = 1, sticky, started, live, modules, graphs, links, launches,
    replays, contexts, lazy, captures, events, peers = 1, peer_copies, enabled;
static size_t room = (size_t)1 << 30, used;
static double now;
static __thread CUcontext current;
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static stream_t *streams[MOST_STREAMS];
static struct { uintptr_t at; size_t size; CUcontext of; } blocks[MOST];
static int (*start)(const char *, unsigned, unsigned, void **);

static CUresult run_to(queue_t *lanes, queue_t *q, int at);
static void drop(graph_t *g);
static CUresult run_all(void) {
  CUresult status = OK;
  for (int i = 0; i < MOST_STREAMS; i++)
    if (streams[i] && !status) status = run_to(NULL, &streams[i]->work, streams[i]->work.count);
  return status;
}
void fake_set(int v, int n, size_t bytes) {
  version = v; devices = n; room = bytes; sticky = OK; launches = replays = links = lazy = 0;
  peers = 1; peer_copies = enabled = 0;
  for (int i = 0; i < MOST_STREAMS; i++) if (streams[i]) streams[i]->capture = NULL;
}
// Which streams do their work late: those that programs run in (1), all others (2).
void fake_lazy(int which) { run_all(); lazy = which; }
void fake_peers(int can) { peers = can; }
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
int fake_events(void) { return events; }
int fake_peer_copies(void) { return peer_copies; }

static int holds_in(CUcontext c, uintptr_t at, size_t n) {
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at && blocks[i].of == c && blocks[i].at <= at &&
        at + n <= blocks[i].at + blocks[i].size) return 1;
  return 0;
}
static int holds(uintptr_t at, size_t n) { return holds_in(current, at, n); }
int fake_holds(uintptr_t at, size_t n) { return holds(at, n); }
static int is_stream(CUstream s) {
  for (int i = 0; i < MOST_STREAMS; i++) if (s && streams[i] == s) return 1;
  return 0;
}
static CUresult ready(void) { return current ? sticky : INVALID_CONTEXT; }

// ---- work in streams

static node_t *push(queue_t *q, node_t n) {
  if (q->count == q->room) q->nodes = realloc(q->nodes, (q->room = 2 * q->room + 8) * sizeof n.f);
  q->nodes[q->count] = malloc(sizeof n);
  *q->nodes[q->count] = n;
  return q->nodes[q->count++];
}
static CUresult run(node_t *n) {
  CUcontext before = current;
  CUresult status = OK;
  current = n->of;
  now++;
  if (n->call) status = n->call(n->kept ? n->kept : n->data);
  else {
    void *slots[MOST_PARAMS];
    for (int i = 0; i < n->f->params && !status; i++) {
      if (!holds(n->params[i], 1)) status = sticky = ILLEGAL_ADDRESS;
      slots[i] = &n->params[i];
    }
    if (!status) status = start(n->f->name, n->grid, n->block, slots);
  }
  current = before;
  return status;
}
// What is to be late in a stream is late in graphs: the first lane, or the others.
static CUresult run_graph(graph_t *g) {
  CUresult status = OK;
  for (int i = 0; i < g->lanes; i++) g->lane[i].done = 0;
  for (int i = 0; i < g->lanes && !status; i++) {
    queue_t *q = &g->lane[lazy & LAZY_COMPUTE ? g->lanes - 1 - i : i];
    status = run_to(g->lane, q, q->count);
  }
  return status;
}
static CUresult run_node(node_t *n, queue_t *lanes) {
  if (n->waits) return run_to(lanes, lanes ? &lanes[n->lane] : n->on, n->at);
  if (n->event) { n->event->time = now; return OK; }
  if (!n->graph) return run(n);
  CUresult status = run_graph(n->graph);
  drop(n->graph);
  n->graph = NULL;
  return status;
}
static CUresult run_to(queue_t *lanes, queue_t *q, int at) {
  CUresult status = OK;
  while (q->done < at && !status) status = run_node(q->nodes[q->done++], lanes);
  return status;
}
// Work for a stream: done at once, later, or a node of what is captured.
static CUresult give(CUstream s, node_t n) {
  if (s->of != current) return INVALID_HANDLE;
  n.of = current;
  if (s->capture) { push(&s->capture->lane[s->lane], n); return OK; }
  if (!lazy) {
    CUresult status = run_node(&n, NULL);
    free(n.kept);
    return status;
  }
  push(&s->work, n);
  if (lazy & (s->flags ? LAZY_OTHERS : LAZY_COMPUTE)) return OK;
  return run_to(NULL, &s->work, s->work.count);
}
// What a library does on the stream.
CUresult fake_do(CUstream s, int (*call)(void *), const void *data, size_t size) {
  node_t n = {.call = call, .size = size};
  if (!is_stream(s) || (s->capture && size > sizeof n.data)) return INVALID_VALUE;
  if (size > sizeof n.data) n.kept = memcpy(malloc(size), data, size);
  else memcpy(n.data, data, size);
  return give(s, n);
}
CUresult cuStreamCreate(CUstream *s, unsigned flags) {
  if (flags > 1) return INVALID_VALUE;
  *s = calloc(1, sizeof **s);
  (*s)->of = current;
  (*s)->flags = flags;
  pthread_mutex_lock(&tables);
  int i = 0;
  while (i < MOST_STREAMS && streams[i]) i++;
  if (i < MOST_STREAMS) streams[i] = *s;
  pthread_mutex_unlock(&tables);
  return i < MOST_STREAMS ? ready() : OUT_OF_MEMORY;
}
CUresult cuStreamDestroy_v2(CUstream s) {
  if (!is_stream(s)) return INVALID_VALUE;
  CUresult status = run_to(NULL, &s->work, s->work.count);
  for (int i = 0; i < MOST_STREAMS; i++) if (streams[i] == s) streams[i] = NULL;
  return status;  // its memory stays, as events may name its work
}
CUresult cuStreamSynchronize(CUstream s) {
  if (!is_stream(s)) return INVALID_VALUE;
  if (s->capture) return CAPTURE_UNSUPPORTED;
  CUresult status = run_to(NULL, &s->work, s->work.count);
  return status ? status : ready();
}
CUresult cuEventCreate(CUevent *e, unsigned flags) {
  if (flags & ~3u) return INVALID_VALUE;
  *e = calloc(1, sizeof **e);
  (*e)->of = current;
  (*e)->flags = flags;
  events++;
  return ready();
}
CUresult cuEventDestroy_v2(CUevent e) { events--; free(e); return OK; }
CUresult cuEventRecord(CUevent e, CUstream s) {
  if (!is_stream(s) || e->of != s->of) return INVALID_HANDLE;
  e->capture = s->capture ? s->capture->id : 0;
  e->lane = s->lane;
  e->work = &s->work;
  e->at = s->capture ? s->capture->lane[s->lane].count : s->work.count;
  if (e->capture) return OK;
  CUcontext before = current;
  current = s->of;
  CUresult status = give(s, (node_t){.event = e});
  e->at = s->work.count;
  current = before;
  return status ? status : ready();
}
static graph_t *capture_of(int id) {
  for (int i = 0; i < MOST_STREAMS; i++)
    if (streams[i] && streams[i]->capture && streams[i]->capture->id == id)
      return streams[i]->capture;
  return NULL;
}
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) {
  if (!is_stream(s) || flags) return INVALID_HANDLE;
  if (s->capture && e->capture != s->capture->id) return CAPTURE_ISOLATION;
  node_t n = {.waits = 1, .on = e->work, .lane = e->lane, .at = e->at};
  if (e->capture && !s->capture) {
    graph_t *g = capture_of(e->capture);
    if (!g || g->lanes == MOST_LANES) return CAPTURED_EVENT;
    s->capture = g;
    s->lane = g->lanes++;
  }
  if (!s->capture && !e->work) return OK;  // never recorded
  CUcontext before = current;
  current = s->of;
  CUresult status = give(s, n);
  current = before;
  return status ? status : ready();
}
CUresult cuEventSynchronize(CUevent e) {
  if (e->capture) return CAPTURED_EVENT;
  CUresult status = e->work ? run_to(NULL, e->work, e->at) : OK;
  return status ? status : ready();
}
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) {
  if ((a->flags | b->flags) & 2) return INVALID_HANDLE;
  if (!a->work || !b->work || a->work->done < a->at || b->work->done < b->at) return NOT_READY;
  *ms = b->time - a->time;
  return ready();
}

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
static __thread CUcontext pushed[8];
static __thread int depth;
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
        : e == CAPTURE_UNJOINED ? "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
        : e == CAPTURE_ISOLATION ? "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"
        : e == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE"
        : e == NOT_READY ? "CUDA_ERROR_NOT_READY"
        : e == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
  return *name ? OK : INVALID_VALUE;
}

// ---- memory

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
  if (!current) return INVALID_CONTEXT;
  if (!n) return INVALID_VALUE;
  if (used + n > room) return OUT_OF_MEMORY;
  *p = (CUdeviceptr)aligned_alloc(256, (n + 255) / 256 * 256);
  memset((void *)*p, 0xFF, n);
  pthread_mutex_lock(&tables);
  for (int i = 0; i < MOST; i++)
    if (!blocks[i].at) { blocks[i].size = n; blocks[i].of = current; blocks[i].at = *p; break; }
  used += n;
  live++;
  pthread_mutex_unlock(&tables);
  return OK;
}
CUresult cuMemFree_v2(CUdeviceptr p) {
  if (!current) return INVALID_CONTEXT;
  run_all();
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
typedef struct { uintptr_t to, from; size_t n; } copy_t;
static int copy_here(void *data) {  // to the device: the bytes follow
  copy_t *c = data;
  if (!holds(c->to, c->n)) return ILLEGAL_ADDRESS;
  memcpy((void *)c->to, c + 1, c->n);
  return OK;
}
static int copy_back(void *data) {
  copy_t *c = data;
  if (!holds(c->from, c->n)) return ILLEGAL_ADDRESS;
  memcpy((void *)c->to, (void *)c->from, c->n);
  return OK;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) {
  if (!holds(to, n) || !is_stream(s)) return INVALID_VALUE;
  if (s->capture) return CAPTURE_UNSUPPORTED;  // a node, in truth, that copies when replayed
  if (sticky) return sticky;
  copy_t *c = malloc(sizeof *c + n);
  *c = (copy_t){to, 0, n};
  memcpy(c + 1, from, n);
  CUresult status = fake_do(s, copy_here, c, sizeof *c + n);
  free(c);
  return status;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) {
  if (!holds(from, n) || !is_stream(s)) return INVALID_VALUE;
  if (s->capture) return CAPTURE_UNSUPPORTED;
  copy_t c = {(uintptr_t)to, from, n};
  return sticky ? sticky : fake_do(s, copy_back, &c, sizeof c);
}
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

typedef struct { CUdeviceptr to, from; CUcontext there, here; size_t n; } peer_t;
static int copy_to_peer(void *data) {
  peer_t *p = data;
  if (!holds_in(p->there, p->to, p->n) || !holds_in(p->here, p->from, p->n)) return ILLEGAL_ADDRESS;
  memcpy((void *)p->to, (void *)p->from, p->n);
  return OK;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice d, CUdevice other) {
  *can = peers && d != other;
  return OK;
}
CUresult cuCtxEnablePeerAccess(CUcontext c, unsigned flags) {
  if (flags || !c || c == current) return INVALID_VALUE;
  if (!peers) return NO_PEERS;
  return enabled++ ? ENABLED_ALREADY : ready();
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here,
                           size_t n, CUstream s) {
  if (!is_stream(s) || !holds_in(there, to, n) || !holds_in(here, from, n)) return INVALID_VALUE;
  peer_copies++;
  peer_t p = {to, from, there, here, n};
  return sticky ? sticky : fake_do(s, copy_to_peer, &p, sizeof p);
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

CUresult cuLaunchKernel(function_t *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream s, void **params,
                        void **extra) {
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || !is_stream(s) || extra ||
      bx > 1024 || !gx || f->params > MOST_PARAMS)
    return INVALID_VALUE;
  if (sticky) return sticky;
  node_t n = {.f = f, .grid = gx, .block = bx};
  for (int i = 0; i < f->params; i++) n.params[i] = *(uintptr_t *)params[i];
  launches += !s->capture;
  return give(s, n);
}
static void drop(graph_t *g) {
  for (int k = 0; k < g->lanes; k++) {
    for (int i = 0; i < g->lane[k].count; i++) free(g->lane[k].nodes[i]);
    free(g->lane[k].nodes);
  }
  free(g);
}
CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
  if (mode != 1 || !is_stream(s) || s->capture) return INVALID_VALUE;
  s->capture = calloc(1, sizeof *s->capture);
  s->capture->id = ++captures;
  s->capture->lanes = 1;
  s->lane = 0;
  graphs++;
  return ready();
}
CUresult cuStreamEndCapture(CUstream s, graph_t **g) {
  if (!is_stream(s) || !s->capture || s->lane) return INVALID_VALUE;
  graph_t *made = s->capture;
  for (int i = 0; i < MOST_STREAMS; i++)
    if (streams[i] && streams[i]->capture == made) streams[i]->capture = NULL;
  CUresult status = sticky;
  for (int k = 1; k < made->lanes && !status; k++) {
    status = CAPTURE_UNJOINED;
    for (int i = 0; i < made->lane[0].count; i++) {
      node_t *n = made->lane[0].nodes[i];
      if (n->waits && n->lane == k && n->at == made->lane[k].count) status = OK;
    }
  }
  *g = status ? NULL : made;
  if (status) { drop(made); graphs--; }
  return status;
}
CUresult cuGraphDestroy(graph_t *g) { drop(g); graphs--; return OK; }
static graph_t *copied(graph_t *g) {
  graph_t *made = calloc(1, sizeof *made);
  made->lanes = g->lanes;
  for (int k = 0; k < g->lanes; k++)
    for (int i = 0; i < g->lane[k].count; i++) push(&made->lane[k], *g->lane[k].nodes[i]);
  return made;
}
CUresult cuGraphInstantiateWithFlags(graph_t ***e, graph_t *g, unsigned long long flags) {
  *e = malloc(sizeof **e);
  **e = copied(g);
  graphs++;
  return flags ? INVALID_VALUE : ready();
}
static int alike(graph_t *a, graph_t *b) {
  if (a->lanes != b->lanes) return 0;
  for (int k = 0; k < a->lanes; k++) {
    if (a->lane[k].count != b->lane[k].count) return 0;
    for (int i = 0; i < a->lane[k].count; i++)
      if (a->lane[k].nodes[i]->f != b->lane[k].nodes[i]->f) return 0;
  }
  return 1;
}
CUresult cuGraphExecUpdate_v2(graph_t **e, graph_t *g, void *info) {
  if (!alike(*e, g)) return UPDATE_FAILURE;
  drop(*e);
  *e = copied(g);
  return OK;
}
CUresult cuGraphExecDestroy(graph_t **e) {
  drop(*e);
  free(e);
  graphs--;
  return current ? OK : INVALID_CONTEXT;
}
CUresult cuGraphLaunch(graph_t **e, CUstream s) {
  if (!is_stream(s) || s->flags || s->capture) return INVALID_VALUE;
  replays++;
  CUresult status = ready();
  return status ? status : give(s, (node_t){.graph = copied(*e)});
}
