// A cuBLASLt of the true signatures on the host's memory: descriptors that are checked when they
// are used, products in column order by loops, epilogues, and how many descriptors are alive.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status_t;
enum { OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
typedef struct { int type; uint64_t rows, cols; int64_t ld; int32_t batch; int64_t stride; } layout_t;
typedef struct { int compute, scale; int32_t ta, tb, epilogue, bias_type; void *bias, *a_scale, *b_scale;
               } desc_t;
typedef struct { uint64_t workspace; uint32_t align[4]; } preference_t;
typedef struct { uint64_t words[8]; } algo_t;
typedef struct { algo_t algo; size_t workspace; status_t state; float waves; int reserved[4];
               } result_t;

static int alive, calls, refuse, failing;
static uint32_t least[4];
int lt_alive(void) { return alive; }
int lt_calls(void) { return calls; }
void lt_refuse(int status) { refuse = status; }
void lt_fail(int status) { failing = status; }
void lt_least(uint32_t *out) { memcpy(out, least, sizeof least); }

const char *cublasLtGetStatusName(status_t s) {
  return s == NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
       : s == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
       : s == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
       : s == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : NULL;
}
status_t cublasLtCreate(void **h) { *h = malloc(1); alive++; return OK; }
status_t cublasLtDestroy(void *h) { free(h); alive--; return OK; }
status_t cublasLtMatmulDescCreate(desc_t **d, int compute, int scale) {
  *d = calloc(1, sizeof(desc_t));
  (*d)->compute = compute; (*d)->scale = scale; (*d)->epilogue = 1; (*d)->bias_type = -1;
  alive++;
  return OK;
}
status_t cublasLtMatmulDescDestroy(desc_t *d) { free(d); alive--; return OK; }
#define TAKE(field) (size == sizeof(field) ? (memcpy(&(field), value, size), OK) : INVALID_VALUE)
status_t cublasLtMatmulDescSetAttribute(desc_t *d, int which, const void *value, size_t size) {
  switch (which) {
  case 3: return TAKE(d->ta);
  case 4: return TAKE(d->tb);
  case 7: return TAKE(d->epilogue);
  case 8: return TAKE(d->bias);
  case 17: return TAKE(d->a_scale);
  case 18: return TAKE(d->b_scale);
  case 26: return TAKE(d->bias_type);
  default: return INVALID_VALUE;
  }
}
status_t cublasLtMatrixLayoutCreate(layout_t **l, int type, uint64_t rows, uint64_t cols,
                                    int64_t ld) {
  if (!rows || !cols || ld < (int64_t)rows) return INVALID_VALUE;
  *l = malloc(sizeof(layout_t));
  **l = (layout_t){type, rows, cols, ld, 1, 0};
  alive++;
  return OK;
}
status_t cublasLtMatrixLayoutDestroy(layout_t *l) { free(l); alive--; return OK; }
status_t cublasLtMatrixLayoutSetAttribute(layout_t *l, int which, const void *value, size_t size) {
  return which == 5 ? TAKE(l->batch) : which == 6 ? TAKE(l->stride) : INVALID_VALUE;
}
status_t cublasLtMatmulPreferenceCreate(preference_t **p) {
  *p = calloc(1, sizeof(preference_t));
  for (int i = 0; i < 4; i++) (*p)->align[i] = 256;
  alive++;
  return OK;
}
status_t cublasLtMatmulPreferenceDestroy(preference_t *p) { free(p); alive--; return OK; }
status_t cublasLtMatmulPreferenceSetAttribute(preference_t *p, int which, const void *value,
                                              size_t size) {
  if (which >= 5 && which <= 8) return TAKE(p->align[which - 5]);
  return which == 1 ? TAKE(p->workspace) : INVALID_VALUE;
}

static int eight(int type) { return type == 28 || type == 29; }
static int known(int type) { return type == 0 || type == 1 || type == 2 || type == 4 || type == 5 ||
                                    type == 14 || eight(type); }
static int scale_of(int type) { return type == 2 || type == 14 || eight(type) ? 0 : type; }
static int compute_of(int type) { return type == 1 || type == 5 ? 70 : 68; }
static status_t check(void *h, desc_t *d, layout_t *a, layout_t *b, layout_t *c) {
  if (!h || !d || !a || !b || !c) return INVALID_VALUE;
  uint64_t m = d->ta ? a->cols : a->rows, k = d->ta ? a->rows : a->cols;
  uint64_t kb = d->tb ? b->cols : b->rows, n = d->tb ? b->rows : b->cols;
  if (m != c->rows || n != c->cols || k != kb) return INVALID_VALUE;
  if (a->batch != b->batch || a->batch != c->batch) return INVALID_VALUE;
  if (!known(a->type) || !known(c->type)) return NOT_SUPPORTED;
  if (eight(a->type) && eight(b->type)) {
    if (a->type + b->type == 58 || !d->ta || d->tb || m % 16 || k % 16 || a->ld % 16 || b->ld % 16)
      return NOT_SUPPORTED;
  } else if (a->type != b->type || d->a_scale || d->b_scale) return NOT_SUPPORTED;
  int fast = d->compute == 77 && a->type == 0;
  if ((d->compute != compute_of(a->type) && !fast) || d->scale != scale_of(a->type))
    return NOT_SUPPORTED;
  // Which outputs there are, and which have epilogues; e4m3's and float32's bias is bfloat16.
  if (c->type != a->type && !(c->type == 0 && (a->type == 2 || a->type == 14)) &&
      !(eight(a->type) && (c->type == 0 || c->type == 2 || c->type == 14)))
    return NOT_SUPPORTED;
  if (d->epilogue != 1 && d->epilogue != 2 && d->epilogue != 4 && d->epilogue != 6 &&
      d->epilogue != 32 && d->epilogue != 36)
    return INVALID_VALUE;
  if (d->epilogue != 1 && (a->type == 1 || a->type == 4 || a->type == 5)) return NOT_SUPPORTED;
  if (d->epilogue & 4 && d->bias_type != (eight(a->type) && c->type == 0 ? 14 : c->type))
    return NOT_SUPPORTED;
  return OK;
}
status_t cublasLtMatmulAlgoGetHeuristic(void *h, desc_t *d, layout_t *a, layout_t *b, layout_t *c,
                                        layout_t *out, preference_t *p, int wanted,
                                        result_t *results, int *given) {
  if (refuse) { *given = 0; return refuse; }
  status_t s = check(h, d, a, b, c);
  if (s || wanted < 1 || c != out) return s ? s : INVALID_VALUE;
  memcpy(least, p->align, sizeof least);
  memset(results, 0, sizeof *results);
  results->algo.words[0] = 0xA160;
  results->workspace = p->workspace >= 4096 ? 4096 : 0;
  *given = 1;
  return OK;
}

typedef _Complex double number;
static number read(const void *p, int type, int64_t i) {
  if (type == 1) return ((const double *)p)[i];
  if (type == 4) return ((const _Complex float *)p)[i];
  if (type == 5) return ((const _Complex double *)p)[i];
  if (type == 0) return ((const float *)p)[i];
  if (eight(type)) {
    int code = ((const uint8_t *)p)[i], e = type == 28 ? 4 : 5, m = 7 - e, bias = (1 << (e - 1)) - 1;
    int exponent = (code & 127) >> m, rest = code & ((1 << m) - 1);
    double v = exponent ? ldexp((1 << m) | rest, exponent - bias - m) : ldexp(rest, 1 - bias - m);
    if (type == 28 ? (code & 127) == 127 : exponent == 31) v = type == 29 && !rest ? INFINITY : NAN;
    return code & 128 ? -v : v;
  }
  uint32_t bits = ((const uint16_t *)p)[i];
  if (type == 14) { bits <<= 16; float f; memcpy(&f, &bits, 4); return f; }
  return (double)((const _Float16 *)p)[i];
}
static void write(void *p, int type, int64_t i, number v) {
  if (type == 1) { ((double *)p)[i] = v; return; }
  if (type == 4) { ((_Complex float *)p)[i] = v; return; }
  if (type == 5) { ((_Complex double *)p)[i] = v; return; }
  float f = (float)v;
  if (type == 0) { ((float *)p)[i] = f; return; }
  if (type == 2) { ((_Float16 *)p)[i] = (_Float16)f; return; }
  uint32_t bits;
  memcpy(&bits, &f, 4);
  ((uint16_t *)p)[i] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

static number rounded(number x, int fast) {  // to TensorFloat-32
  if (!fast) return x;
  float f = (float)x;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFFu;
  memcpy(&f, &bits, 4);
  return f;
}
static double gelu(double x) {
  return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

typedef struct { desc_t d; layout_t la, lb, lc; const void *a, *b; void *out, *workspace;
                 size_t bytes; } call_t;
int fake_do(void *stream, int (*call)(void *), const void *data, size_t size);
int fake_holds(uintptr_t at, size_t n);
static int multiply(void *data);

status_t cublasLtMatmul(void *h, desc_t *d, const void *alpha, const void *a, layout_t *la,
                        const void *b, layout_t *lb, const void *beta, const void *c, layout_t *lc,
                        void *out, layout_t *lout, const algo_t *algo, void *workspace,
                        size_t bytes, void *stream) {
  status_t s = check(h, d, la, lb, lc);
  if (s) return s;
  if (lc != lout || c != out || !algo || algo->words[0] != 0xA160) return INVALID_VALUE;
  if (bytes && !workspace) return INVALID_VALUE;
  number one = read(alpha, d->scale, 0), zero = read(beta, d->scale, 0);
  if (one != 1 || zero != 0) return NOT_SUPPORTED;
  if (d->epilogue & 4 && !d->bias) return INVALID_VALUE;
  call_t made = {*d, *la, *lb, *lc, a, b, out, workspace, bytes};
  calls++;
  if (failing) return failing;
  return fake_do(stream, multiply, &made, sizeof made);
}

static int multiply(void *data) {
  call_t *p = data;
  desc_t *d = &p->d;
  layout_t *la = &p->la, *lb = &p->lb, *lc = &p->lc;
  if (!fake_holds((uintptr_t)p->a, 1) || !fake_holds((uintptr_t)p->b, 1) ||
      !fake_holds((uintptr_t)p->out, 1) || !fake_holds((uintptr_t)p->workspace, p->bytes))
    return 13;
  if (d->epilogue & 4 && !fake_holds((uintptr_t)d->bias, 1)) return 13;
  if (d->a_scale && !fake_holds((uintptr_t)d->a_scale, 4)) return 13;
  if (d->b_scale && !fake_holds((uintptr_t)d->b_scale, 4)) return 13;
  float sa = d->a_scale ? *(float *)d->a_scale : 1, sb = d->b_scale ? *(float *)d->b_scale : 1;
  int fast = d->compute == 77;
  memset(p->workspace, 0xFF, p->bytes);
  int64_t m = lc->rows, n = lc->cols, k = d->ta ? la->rows : la->cols;
  for (int64_t g = 0; g < lc->batch; g++)
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < m; i++) {
        number sum = 0;
        for (int64_t t = 0; t < k; t++)
          sum += rounded(read(p->a, la->type,
                              g * la->stride + (d->ta ? i * la->ld + t : t * la->ld + i)), fast) *
                 rounded(read(p->b, lb->type,
                              g * lb->stride + (d->tb ? t * lb->ld + j : j * lb->ld + t)), fast);
        sum *= sa * sb;
        if (d->epilogue & 4) sum += read(d->bias, d->bias_type, i);
        if (d->epilogue & 32) sum = gelu((double)sum);
        if (d->epilogue & 2) sum = (double)sum < 0 ? 0 : (double)sum;
        write(p->out, lc->type, g * lc->stride + j * lc->ld + i, sum);
      }
  return OK;
}
