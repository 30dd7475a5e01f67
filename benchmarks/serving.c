/* A client of benchmarks/serving.py: connections that are kept open, one request under way on each.

   serving PORT CONNECTIONS SECONDS FILE
   The file has, in order of the machine, int32: requests, and numbers in an answer; and for each
   request int32: its bytes; those; and the numbers that its answer must hold, float32.
   It prints how many requests were answered, and the seconds that half and 99 % of them took. */

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int bytes;
    char *text;
    float *wanted;
} Request;

typedef struct {
    int socket, used;
    Request *request;
    double since;
    char text[1 << 16];
} Connection;

static int numbers; /* in an answer */

static void fail(const char *what, const char *more) {
    fprintf(stderr, "%s: %.300s\n", what, more);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *read_of(FILE *file, size_t bytes) {
    char *found = calloc(1, bytes + 1);
    if (!found || fread(found, 1, bytes, file) != bytes) fail("the file of requests", "is short");
    return found;
}

static Request *requests(const char *path, int *count) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path, strerror(errno));
    int *head = read_of(file, 2 * sizeof(int));
    *count = head[0], numbers = head[1];
    Request *found = calloc((size_t)*count, sizeof(Request));
    for (int i = 0; i < *count; i++) {
        found[i].bytes = *(int *)read_of(file, sizeof(int));
        found[i].text = read_of(file, (size_t)found[i].bytes);
        found[i].wanted = read_of(file, (size_t)numbers * sizeof(float));
    }
    fclose(file);
    return found;
}

static void ask(Connection *c) {
    c->used = 0, c->since = now();
    if (send(c->socket, c->request->text, (size_t)c->request->bytes, 0) != c->request->bytes)
        fail("send", strerror(errno));
}

static void check(Connection *c, const char *body, int length) {
    const char *data = strstr(body, "\"data\": [");
    const char *bytes = body + length - (size_t)numbers * sizeof(float);
    if (data) data += 9;
    for (int i = 0; i < numbers; i++) {
        float got;
        if (data) {
            char *end;
            got = strtof(data, &end);
            data = end + 1;
        } else {
            memcpy(&got, bytes + (size_t)i * sizeof(float), sizeof(float));
        }
        if (!(fabsf(got - c->request->wanted[i]) <= 1e-4f)) fail("a wrong answer", body);
    }
}

/* Whether the answer is whole. */
static int answered(Connection *c) {
    ssize_t n = recv(c->socket, c->text + c->used, sizeof c->text - 1 - (size_t)c->used, 0);
    if (n <= 0) fail("recv", n ? strerror(errno) : "the server closed a connection");
    c->used += (int)n;
    c->text[c->used] = 0;
    char *body = strstr(c->text, "\r\n\r\n");
    if (!body) return 0;
    if (strncmp(c->text, "HTTP/1.1 200", 12)) fail("the server answered", c->text);
    char *told = strcasestr(c->text, "\r\ncontent-length:");
    if (!told || told > body) fail("an answer without a length", c->text);
    int length = atoi(told + 17);
    body += 4;
    if (c->used - (int)(body - c->text) < length) return 0;
    check(c, body, length);
    return 1;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5) fail("usage", "serving PORT CONNECTIONS SECONDS FILE");
    int count, connections = atoi(argv[2]), one = 1, poll = epoll_create1(0);
    Request *asked = requests(argv[4], &count);
    size_t done = 0, room = 1 << 20;
    double *took = malloc(room * sizeof(double));
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    server.sin_port = htons((unsigned short)atoi(argv[1]));
    double end = now() + atof(argv[3]);
    for (int i = 0; i < connections; i++) {
        Connection *c = calloc(1, sizeof(Connection));
        c->socket = socket(AF_INET, SOCK_STREAM, 0), c->request = &asked[i % count];
        if (connect(c->socket, (struct sockaddr *)&server, sizeof server))
            fail("connect", strerror(errno));
        setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event);
        ask(c);
    }
    while (now() < end || !done) {
        struct epoll_event events[256];
        int n = epoll_wait(poll, events, 256, 1000);
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (!answered(c)) continue;
            if (done < room) took[done++] = now() - c->since;
            ask(c);
        }
    }
    qsort(took, done, sizeof(double), by_size);
    printf("%zu %.9f %.9f\n", done, took[done / 2], took[(size_t)(0.99 * (double)done)]);
    return 0;
}
