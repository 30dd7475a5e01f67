// A cuDNN 9 of the true signatures on the host's memory: its three functions of convolutions by
// loops, descriptors that are checked when they are used, heuristics that propose what mustn't be
// taken before what may, and how many descriptors and handles are alive.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status_t;
enum { OK = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
enum { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, FMA_MATH = 3 };
enum { FORWARD, DATA, FILTER };
enum { GOOD = 1, VARIES = 0, LARGE = 5, REFUSED = 4, MOST = 5 };
typedef struct { void *stream; } handle_t;
typedef struct { int type, n, sizes[MOST], strides[MOST]; } tensor_t;
typedef struct { int type, format, n, sizes[MOST]; } filter_t;
typedef struct { int n, pads[3], strides[3], dilation[3], mode, compute, groups, math; } conv_t;
typedef struct { int algo; status_t status; float time; size_t memory; int determinism, math;
                 int reserved[3]; } perf_t;

static int alive, calls, refuse, failing;
int dnn_alive(void) { return alive; }
int dnn_calls(void) { return calls; }
void dnn_refuse(int status) { refuse = status; }
void dnn_fail(int status) { failing = status; }

const char *cudnnGetErrorString(status_t s) {
  return s == OK ? "CUDNN_STATUS_SUCCESS"
       : s == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM"
       : s == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
       : s == EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : NULL;
}
status_t cudnnCreate(handle_t **h) { *h = calloc(1, sizeof(handle_t)); alive++; return OK; }
status_t cudnnDestroy(handle_t *h) { free(h); alive--; return OK; }
status_t cudnnSetStream(handle_t *h, void *stream) {
  if (!h) return BAD_PARAM;
  h->stream = stream;
  return OK;
}
#define DESCRIPTOR(Name, type)                                                                     \
  status_t cudnnCreate##Name##Descriptor(type **d) {                                               \
    *d = calloc(1, sizeof(type));                                                                  \
    alive++;                                                                                       \
    return OK;                                                                                     \
  }                                                                                                \
  status_t cudnnDestroy##Name##Descriptor(type *d) { free(d); alive--; return OK; }
DESCRIPTOR(Tensor, tensor_t)
DESCRIPTOR(Filter, filter_t)
DESCRIPTOR(Convolution, conv_t)

static int known(int type) {
  return type == FLOAT || type == DOUBLE || type == HALF || type == BFLOAT16;
}
status_t cudnnSetTensorNdDescriptor(tensor_t *d, int type, int n, const int *sizes,
                                    const int *strides) {
  if (n < 4 || n > MOST || !known(type)) return BAD_PARAM;
  d->type = type;
  d->n = n;
  for (int i = 0; i < n; i++) {
    if (sizes[i] < 1 || strides[i] < 1) return BAD_PARAM;
    d->sizes[i] = sizes[i];
    d->strides[i] = strides[i];
  }
  return OK;
}
status_t cudnnSetFilterNdDescriptor(filter_t *d, int type, int format, int n, const int *sizes) {
  if (n < 4 || n > MOST || !known(type) || format < 0 || format > 1) return BAD_PARAM;
  d->type = type;
  d->format = format;
  d->n = n;
  for (int i = 0; i < n; i++) if (sizes[i] < 1) return BAD_PARAM; else d->sizes[i] = sizes[i];
  return OK;
}
status_t cudnnSetConvolutionNdDescriptor(conv_t *d, int n, const int *pads, const int *strides,
                                         const int *dilation, int mode, int compute) {
  if (n < 2 || n > 3 || mode < 0 || mode > 1) return BAD_PARAM;
  *d = (conv_t){.n = n, .mode = mode, .compute = compute, .groups = 1};
  for (int i = 0; i < n; i++) {
    if (pads[i] < 0 || strides[i] < 1 || dilation[i] < 1) return BAD_PARAM;
    d->pads[i] = pads[i];
    d->strides[i] = strides[i];
    d->dilation[i] = dilation[i];
  }
  return OK;
}
status_t cudnnSetConvolutionGroupCount(conv_t *d, int groups) {
  d->groups = groups;
  return groups < 1 ? BAD_PARAM : OK;
}
status_t cudnnSetConvolutionMathType(conv_t *d, int math) {
  d->math = math;
  return math < 0 || math > 3 ? BAD_PARAM : OK;
}

static status_t check(handle_t *h, tensor_t *x, filter_t *w, conv_t *c, tensor_t *y) {
  if (!h || !x || !w || !c || !y || x->n != w->n || x->n != y->n || c->n != x->n - 2)
    return BAD_PARAM;
  if (x->type != w->type || x->type != y->type) return NOT_SUPPORTED;
  if (c->compute != (x->type == DOUBLE ? DOUBLE : FLOAT)) return NOT_SUPPORTED;
  if (x->sizes[0] != y->sizes[0] || x->sizes[1] != w->sizes[1] * c->groups ||
      y->sizes[1] != w->sizes[0] || w->sizes[0] % c->groups)
    return BAD_PARAM;
  for (int i = 0; i < c->n; i++) {
    int reach = (w->sizes[i + 2] - 1) * c->dilation[i] + 1;
    int n = x->sizes[i + 2] + 2 * c->pads[i] - reach;
    if (n < 0 || 1 + n / c->strides[i] != y->sizes[i + 2]) return BAD_PARAM;
  }
  // Neither layout for kernels goes with images of the other one.
  if (w->format != (x->strides[1] == 1 && x->sizes[1] > 1) && x->sizes[1] > 1 && w->sizes[1] > 1)
    return NOT_SUPPORTED;
  return OK;
}
static status_t algorithms(status_t s, conv_t *c, int type, int wanted, int *given, perf_t *found) {
  *given = 0;
  if (refuse) return refuse;
  if (s || wanted < 1) return s ? s : BAD_PARAM;
  int fast = type == DOUBLE ? DEFAULT_MATH : type == FLOAT ? c->math : TENSOR_OP_MATH;
  perf_t all[] = {{REFUSED, NOT_SUPPORTED, -1, 0, 1, fast}, {VARIES, OK, 1, 0, 0, fast},
                  {LARGE, OK, 2, (size_t)1 << 40, 1, fast}, {GOOD, OK, 3, 4096, 1, fast}};
  for (int i = 0; i < 4 && i < wanted; i++) found[(*given)++] = all[i];
  return OK;
}
static status_t workspace(status_t s, int algo, size_t *size) {
  if (s) return s;
  if (algo == REFUSED) return NOT_SUPPORTED;
  *size = algo == LARGE ? (size_t)1 << 40 : 4096;
  return OK;
}

static double read(const void *p, int type, int64_t i) {
  if (type == FLOAT) return ((const float *)p)[i];
  if (type == DOUBLE) return ((const double *)p)[i];
  if (type == HALF) return (double)((const _Float16 *)p)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static void write(void *p, int type, int64_t i, double v) {
  float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (type == FLOAT) ((float *)p)[i] = f;
  else if (type == DOUBLE) ((double *)p)[i] = v;
  else if (type == HALF) ((_Float16 *)p)[i] = (_Float16)f;
  else ((uint16_t *)p)[i] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}
static double rounded(double x, int fast) {  // to TensorFloat-32
  if (!fast) return x;
  float f = (float)x;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFFu;
  memcpy(&f, &bits, 4);
  return f;
}

typedef struct { tensor_t x, y; filter_t w; conv_t c; int kind; void *px, *pw, *py, *work; } call_t;
_Static_assert(sizeof(call_t) <= 256, "a node of a graph has no more room");
int fake_do(void *stream, int (*call)(void *), const void *data, size_t size);
int fake_holds(uintptr_t at, size_t n);

static int64_t place(const tensor_t *t, int64_t n, int64_t c, const int *at) {
  int64_t i = n * t->strides[0] + c * t->strides[1];
  for (int k = 0; k < t->n - 2; k++) i += (int64_t)at[k] * t->strides[k + 2];
  return i;
}
static int64_t tap(const filter_t *w, int64_t k, int64_t c, const int *at) {
  int64_t taps = 1, i = 0;
  for (int j = 0; j < w->n - 2; j++) { i = i * w->sizes[j + 2] + at[j]; taps *= w->sizes[j + 2]; }
  return w->format ? (k * taps + i) * w->sizes[1] + c : (k * w->sizes[1] + c) * taps + i;
}
static int next(int *at, const int *sizes, int n) {
  for (int i = n - 1; i >= 0; i--) if (++at[i] < sizes[i]) return 1; else at[i] = 0;
  return 0;
}
// Adds up, for each place of results, tap, image, feature and channel, what the function does.
static int convolve(void *data) {
  call_t *p = data;
  conv_t *c = &p->c;
  tensor_t *x = &p->x, *y = &p->y;
  filter_t *w = &p->w;
  if (!fake_holds((uintptr_t)p->px, 1) || !fake_holds((uintptr_t)p->pw, 1) ||
      !fake_holds((uintptr_t)p->py, 1) || !fake_holds((uintptr_t)p->work, 4096))
    return EXECUTION_FAILED;
  memset(p->work, 0xFF, 4096);
  int fast = x->type == FLOAT && c->math != FMA_MATH, n = c->n, of = w->sizes[0] / c->groups;
  size_t sizes[3] = {1, 1, 1};
  for (int i = 0; i < x->n; i++) {
    sizes[0] *= y->sizes[i]; sizes[1] *= x->sizes[i]; sizes[2] *= w->sizes[i];
  }
  double *sums = calloc(sizes[p->kind], sizeof(double));
  int out[3] = {0}, t[3], at[3], there[3];
  do {
    memset(t, 0, sizeof t);
    do {
      int inside = 1;
      for (int i = 0; i < n; i++) {
        there[i] = c->mode ? t[i] : w->sizes[i + 2] - 1 - t[i];
        at[i] = out[i] * c->strides[i] + t[i] * c->dilation[i] - c->pads[i];
        inside &= at[i] >= 0 && at[i] < x->sizes[i + 2];
      }
      for (int64_t b = 0; b < x->sizes[0]; b++)
        for (int64_t k = 0; k < w->sizes[0]; k++)
          for (int64_t i = 0; i < w->sizes[1]; i++) {
            int64_t channel = k / of * w->sizes[1] + i;
            int64_t px = inside ? place(x, b, channel, at) : -1, py = place(y, b, k, out);
            int64_t pw = tap(w, k, i, there), to = p->kind == FORWARD ? py : p->kind == DATA ? px : pw;
            if (to < 0) continue;
            double left = p->kind == DATA ? read(p->py, x->type, py)
                        : inside ? read(p->px, x->type, px) : 0;
            double right = p->kind == FILTER ? read(p->py, x->type, py) : read(p->pw, x->type, pw);
            sums[to] += rounded(left, fast) * rounded(right, fast);
          }
    } while (next(t, w->sizes + 2, n));
  } while (next(out, y->sizes + 2, n));
  void *result = p->kind == FORWARD ? p->py : p->kind == DATA ? p->px : p->pw;
  for (size_t i = 0; i < sizes[p->kind]; i++) write(result, x->type, i, sums[i]);
  free(sums);
  return OK;
}
static status_t run(handle_t *h, status_t s, const void *alpha, const void *beta, int algo,
                    size_t bytes, call_t *made) {
  if (s) return s;
  int type = made->x.type == DOUBLE ? DOUBLE : FLOAT;
  if (algo != GOOD || read(alpha, type, 0) != 1 || read(beta, type, 0) != 0) return NOT_SUPPORTED;
  if (bytes < 4096 || !made->work) return BAD_PARAM;
  calls++;
  return failing ? failing : fake_do(h->stream, convolve, made, sizeof *made);
}

#define FUNCTIONS(Name, kind, A, a, B, b, C, c, x, w, y)                                           \
  status_t cudnnGetConvolution##Name##Algorithm_v7(handle_t *h, A *a, B *b, conv_t *conv, C *c,    \
                                                   int wanted, int *given, perf_t *found) {        \
    return algorithms(check(h, x, w, conv, y), conv, x->type, wanted, given, found);               \
  }                                                                                                \
  status_t cudnnGetConvolution##Name##WorkspaceSize(handle_t *h, A *a, B *b, conv_t *conv, C *c,   \
                                                    int algo, size_t *size) {                      \
    return workspace(check(h, x, w, conv, y), algo, size);                                         \
  }                                                                                                \
  status_t cudnnConvolution##Name(handle_t *h, const void *alpha, A *a, void *p##a, B *b,          \
                                  void *p##b, conv_t *conv, int algo, void *work, size_t bytes,    \
                                  const void *beta, C *c, void *p##c) {                            \
    call_t made = {*x, *y, *w, *conv, kind, p##x, p##w, p##y, work};                               \
    return run(h, check(h, x, w, conv, y), alpha, beta, algo, bytes, &made);                       \
  }
FUNCTIONS(Forward, FORWARD, tensor_t, x, filter_t, w, tensor_t, y, x, w, y)
FUNCTIONS(BackwardData, DATA, filter_t, w, tensor_t, y, tensor_t, x, x, w, y)
FUNCTIONS(BackwardFilter, FILTER, tensor_t, x, tensor_t, y, filter_t, w, x, w, y)
