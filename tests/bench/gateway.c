/* A light payment gateway for measuring: one thread, epoll, HTTP/1.1 keep-alive, fixed latency.
 *
 * It speaks what the engine asks of the simulator's wire: charge by idempotency key with replay,
 * lookup by reference, by id and by period, capabilities, the Date header. It collects every charge
 * at once, and it is an order of magnitude cheaper than what it measures.
 *
 *   gateway PORT LATENCY_MS    PORT 0 takes a free one; prints {"url": "..."} when it is ready.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 20000
#define INPUT 16384
#define PAGE 100

typedef struct { char *in; int n; unsigned generation; } Conn;
typedef struct { uint64_t key, body, reference; time_t at; char *json; long next; } Payment;
typedef struct { uint64_t due; int fd; unsigned generation; char *text; size_t size; } Waiting;
typedef struct { const char *s; size_t n; } Span;

static Conn conns[MAX_FD];
static Payment *payments;
static long n_payments, room, posts, replays, conflicts, lookups;
static long long total_amount;
static Waiting *queue;
static unsigned q_head, q_tail;
#define QUEUE (1u << 16)
#define TABLE (1u << 22)
static uint32_t by_key[TABLE], by_reference[TABLE]; /* index + 1 of a payment, 0 = free */
static int ep, timer;
static uint64_t latency_us;

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static uint64_t hash(Span v) {
  uint64_t h = 1469598103934665603ull;
  for (size_t i = 0; i < v.n; i++) h = (h ^ (unsigned char)v.s[i]) * 1099511628211ull;
  return h ? h : 1;
}

static uint32_t *slot(uint32_t *table, uint64_t h, int keyed) {
  uint32_t at = (uint32_t)(h ^ (h >> 32)) % TABLE;
  while (table[at]) {
    Payment *p = &payments[table[at] - 1];
    if ((keyed ? p->key : p->reference) == h) break;
    at = (at + 1) % TABLE;
  }
  return &table[at];
}

static void drop(int fd) {
  epoll_ctl(ep, EPOLL_CTL_DEL, fd, 0);
  close(fd);
  conns[fd].n = 0;
  conns[fd].generation++;
}

static void send_all(int fd, const char *s, size_t n) {
  while (n) {
    ssize_t w = send(fd, s, n, MSG_NOSIGNAL);
    if (w < 0 && (errno == EAGAIN || errno == EINTR)) { usleep(50); continue; }
    if (w <= 0) { drop(fd); return; }
    s += w; n -= (size_t)w;
  }
}

static void arm(void) {
  struct itimerspec t = {0};
  if (q_head != q_tail) {
    uint64_t due = queue[q_head % QUEUE].due;
    t.it_value.tv_sec = (time_t)(due / 1000000u);
    t.it_value.tv_nsec = (long)(due % 1000000u) * 1000;
  }
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &t, 0);
}

/* Answer now, or after the latency when the call is one of the payment calls. */
static void answer(int fd, const char *status, const char *more, const char *body, size_t n, int slow) {
  static char date[64];
  static time_t stamped;
  time_t now = time(0);
  if (now != stamped) {
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    stamped = now;
  }
  char *text = malloc(n + 256);
  size_t size = (size_t)sprintf(text,
      "HTTP/1.1 %s\r\nDate: %s\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n",
      status, date, more, n);
  memcpy(text + size, body, n);
  size += n;
  if (!slow || !latency_us || q_tail - q_head == QUEUE) {
    send_all(fd, text, size);
    free(text);
    return;
  }
  int was_empty = q_head == q_tail;
  queue[q_tail++ % QUEUE] = (Waiting){now_us() + latency_us, fd, conns[fd].generation, text, size};
  if (was_empty) arm();
}

static void reply(int fd, const char *status, const char *body, int slow) {
  answer(fd, status, "", body, strlen(body), slow);
}

/* The span of a JSON value that begins at s. */
static Span value(const char *s, const char *end) {
  const char *p = s;
  int depth = 0, text = 0;
  for (; p < end; p++) {
    if (text) { if (*p == '\\') p++; else if (*p == '"') { text = 0; if (!depth) { p++; break; } } continue; }
    if (*p == '"') text = 1;
    else if (*p == '{' || *p == '[') depth++;
    else if (*p == '}' || *p == ']') { if (!depth) break; if (!--depth) { p++; break; } }
    else if (!depth && (*p == ',' || *p == ' ')) break;
  }
  return (Span){s, (size_t)(p - s)};
}

/* The value of a top-level member, as written; empty when it is absent. */
static Span member(Span object, const char *name) {
  const char *p = object.s, *end = object.s + object.n;
  size_t length = strlen(name);
  if (p < end && *p == '{') p++;
  while (p < end) {
    while (p < end && (*p == ' ' || *p == ',')) p++;
    if (p >= end || *p != '"') break;
    Span key = value(p, end);
    p += key.n;
    while (p < end && (*p == ' ' || *p == ':')) p++;
    Span v = value(p, end);
    if (key.n == length + 2 && !memcmp(key.s + 1, name, length)) return v;
    p += v.n;
  }
  return (Span){"", 0};
}

static void charge(int fd, Span key, Span body) {
  posts++;
  uint64_t k = hash(key), b = hash(body);
  uint32_t *found = slot(by_key, k, 1);
  if (*found) {
    Payment *p = &payments[*found - 1];
    if (p->body != b) {
      conflicts++;
      reply(fd, "409 Conflict", "{\"error\":{\"code\":\"idempotency_conflict\",\"retryable\":false}}", 1);
      return;
    }
    replays++;
    answer(fd, "201 Created", "Idempotent-Replayed: true\r\n", p->json, strlen(p->json), 1);
    return;
  }
  Span reference = member(body, "reference"), amount = member(body, "amount");
  Span currency = member(body, "currency"), mandate = member(body, "mandate");
  Span metadata = member(body, "metadata");
  if (!key.n || !reference.n || !amount.n || !currency.n || !mandate.n || !metadata.n) {
    reply(fd, "422 Unprocessable Entity",
        "{\"error\":{\"code\":\"invalid_request\",\"message\":\"a field is missing\",\"retryable\":false}}", 1);
    return;
  }
  if (n_payments == room) payments = realloc(payments, (size_t)(room = room ? 2 * room : 4096) * sizeof *payments);
  time_t now = time(0);
  struct tm tm;
  char at[32], *json = malloc(body.n + 384);
  gmtime_r(&now, &tm);
  strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", &tm);
  sprintf(json, "{\"id\":\"pay_%ld\",\"reference\":%.*s,\"amount\":%.*s,\"currency\":%.*s,\"mandate\":%.*s,"
      "\"status\":\"collected\",\"decline_code\":null,\"created_at\":\"%s\",\"metadata\":%.*s,"
      "\"refunded_amount\":0,\"disputed\":false}", n_payments + 1, (int)reference.n, reference.s,
      (int)amount.n, amount.s, (int)currency.n, currency.s, (int)mandate.n, mandate.s, at,
      (int)metadata.n, metadata.s);
  uint64_t r = hash((Span){reference.s + 1, reference.n - 2});
  uint32_t *head = slot(by_reference, r, 0);
  payments[n_payments] = (Payment){k, b, r, now, json, (long)*head - 1};
  *found = *head = (uint32_t)++n_payments;
  total_amount += atoll(amount.s);
  answer(fd, "201 Created", "", json, strlen(json), 1);
}

/* A query's parameter, percent-decoded in place; NULL when it is absent. */
static char *parameter(char *query, const char *name) {
  size_t n = strlen(name);
  for (char *p = query; p && *p; p = strchr(p, '&') ? strchr(p, '&') + 1 : 0) {
    if (strncmp(p, name, n) || p[n] != '=') continue;
    static char out[4][512];
    static int turn;
    char *o = out[turn++ % 4], *w = o;
    for (p += n + 1; *p && *p != '&' && w < o + 511; p++) {
      if (*p == '%' && p[1] && p[2]) { char hex[3] = {p[1], p[2], 0}; *w++ = (char)strtol(hex, 0, 16); p += 2; }
      else *w++ = *p == '+' ? ' ' : *p;
    }
    *w = 0;
    return o;
  }
  return 0;
}

static time_t moment(const char *text, time_t absent) {
  struct tm tm = {0};
  if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &tm)) return absent;
  return timegm(&tm);
}

/* One page of the payments of a period or of a reference. */
static void list(int fd, char *query) {
  static char *page;
  static size_t size;
  size_t used = 0;
  int count = 0;
  long next = -1;
  char *reference = parameter(query, "reference"), *cursor = parameter(query, "cursor");
  time_t from = moment(parameter(query, "created_from"), 0);
  time_t to = moment(parameter(query, "created_to"), (time_t)1 << 40);
  long i = cursor ? atol(cursor) : 0;
  if (reference) i = (long)*slot(by_reference, hash((Span){reference, strlen(reference)}), 0) - 1;
  lookups++;
  while (i >= 0 && i < n_payments) {
    Payment *p = &payments[i];
    size_t length = strlen(p->json);
    if (reference || (p->at >= from && p->at <= to)) {
      if (count == PAGE) { next = i; break; }
      if (used + length + 128 > size) page = realloc(page, size = 2 * (used + length) + 4096);
      used += (size_t)sprintf(page + used, "%s%s", count++ ? "," : "{\"data\":[", p->json);
    }
    i = reference ? p->next : i + 1;
  }
  if (!count) { reply(fd, "200 OK", "{\"data\":[],\"next_cursor\":null}", 1); return; }
  if (next < 0) used += (size_t)sprintf(page + used, "],\"next_cursor\":null}");
  else used += (size_t)sprintf(page + used, "],\"next_cursor\":\"%ld\"}", next);
  answer(fd, "200 OK", "", page, used, 1);
}

static void get(int fd, char *path) {
  static const char capabilities[] =
      "{\"idempotency_keys\":true,\"keys\":\"replay\",\"key_retention_seconds\":86400,\"replays_5xx\":true,"
      "\"lookup\":\"strong\",\"lookup_lag_seconds\":0,\"in_flight_bound_seconds\":300,\"list_by_mandate\":false,"
      "\"represents\":false,\"refunds\":false,\"movements\":false,\"mode\":\"test\",\"account\":\"bench\"}";
  if (!strcmp(path, "/v1/capabilities")) { reply(fd, "200 OK", capabilities, 0); return; }
  if (!strcmp(path, "/control/stats")) {
    char body[256];
    sprintf(body, "{\"posts\":%ld,\"keys\":%ld,\"payments\":%ld,\"replays\":%ld,\"conflicts\":%ld,"
        "\"lookups\":%ld,\"amount\":%lld}", posts, n_payments, n_payments, replays, conflicts, lookups, total_amount);
    reply(fd, "200 OK", body, 0);
    return;
  }
  if (!strncmp(path, "/v1/payments?", 13)) { list(fd, path + 13); return; }
  if (!strncmp(path, "/v1/payments/pay_", 17)) {
    long id = atol(path + 17);
    lookups++;
    if (id >= 1 && id <= n_payments) { reply(fd, "200 OK", payments[id - 1].json, 1); return; }
  }
  reply(fd, "404 Not Found", "{\"error\":{\"code\":\"not_found\",\"message\":\"no such thing\",\"retryable\":false}}", 1);
}

/* Handle one request; 0 while it has not fully come. */
static int handle(int fd) {
  Conn *c = &conns[fd];
  c->in[c->n] = 0;
  char *end = strstr(c->in, "\r\n\r\n");
  if (!end) return 0;
  int head = (int)(end - c->in) + 4, length = 0;
  char *p = strcasestr(c->in, "\ncontent-length:");
  if (p && p < end) length = atoi(p + 16);
  if (length < 0 || head + length > INPUT) { drop(fd); return 0; }
  if (c->n < head + length) return 0;
  unsigned generation = c->generation;
  char *path = strchr(c->in, ' ');
  int post = !strncmp(c->in, "POST /v1/payments ", 18);
  if (post) {
    Span key = {"", 0};
    p = strcasestr(c->in, "\nidempotency-key:");
    if (p && p < end) {
      for (p += 17; *p == ' ';) p++;
      key = (Span){p, strcspn(p, "\r")};
    }
    charge(fd, key, (Span){c->in + head, (size_t)length});
  } else if (path && path < end) {
    path++;
    path[strcspn(path, " \r")] = 0;
    get(fd, path);
  } else drop(fd);
  if (c->generation != generation) return 0;
  memmove(c->in, c->in + head + length, (size_t)(c->n - head - length));
  c->n -= head + length;
  return 1;
}

static void accept_all(int listener) {
  int s, one = 1;
  while ((s = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
    if (s >= MAX_FD) { close(s); continue; }
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!conns[s].in) conns[s].in = malloc(INPUT + 1);
    conns[s].n = 0;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = s};
    epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
  }
}

static void answer_waiting(void) {
  uint64_t ticks, until = now_us() + 100;
  if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) return;
  while (q_head != q_tail && queue[q_head % QUEUE].due <= until) {
    Waiting w = queue[q_head++ % QUEUE];
    if (conns[w.fd].generation == w.generation) send_all(w.fd, w.text, w.size);
    free(w.text);
  }
  arm();
}

int main(int argc, char **argv) {
  if (argc != 3) { fprintf(stderr, "usage: gateway PORT LATENCY_MS\n"); return 2; }
  latency_us = (uint64_t)(atof(argv[2]) * 1000);
  queue = malloc(QUEUE * sizeof *queue);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])),
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof a;
  if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) { perror("bind"); return 1; }
  getsockname(listener, (void *)&a, &size);
  ep = epoll_create1(0);
  timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, events[512];
  epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
  e.data.fd = timer;
  epoll_ctl(ep, EPOLL_CTL_ADD, timer, &e);
  printf("{\"url\": \"http://127.0.0.1:%d\"}\n", ntohs(a.sin_port));
  fflush(stdout);
  for (;;) {
    int n = epoll_wait(ep, events, 512, -1);
    for (int i = 0; i < n; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) { accept_all(fd); continue; }
      if (fd == timer) { answer_waiting(); continue; }
      Conn *c = &conns[fd];
      ssize_t r = recv(fd, c->in + c->n, (size_t)(INPUT - c->n), 0);
      if (r < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (r <= 0) { drop(fd); continue; }
      c->n += (int)r;
      while (c->n && handle(fd)) {}
    }
  }
}
