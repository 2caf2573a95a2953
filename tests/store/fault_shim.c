/* Stands between a process and what it does to files under one folder.

   Loaded before the C library (LD_PRELOAD).  Every call that opens, writes, waits for,
   renames, links, removes, locks or closes something under the folder is an event: it
   is written down where the parent process sees it, and the one that was chosen is
   killed at, fails, is done by halves, or waits for the parent's word. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NONE, KILL, FAIL, TORN, SHORT };
enum { RUNNING, WAITING, BLOCKED, DONE };

#define EVENTS 500
#define FDS 1024
#define TEXT 480

struct event {
  char call[16], path[TEXT], other[TEXT];
  long size;
  int result, error;
};

struct shared {
  char root[TEXT], pending[16];
  int armed, gated, state, count;
  int fault, at, to, error; /* events [at, to) meet the fault */
  long part;
  int dry; /* waiting for the disk is not done, only written down */
  sem_t go, arrived;
  struct event events[EVENTS];
};

static struct shared *shared;
static char tracked[FDS][TEXT]; /* path under the root by descriptor; "" for others */

/* For the parent and the child, through ctypes. */

long shim_size(void) { return sizeof(struct shared); }

void shim_attach(void *memory) { shared = memory; }

void shim_prepare(void *memory, const char *root, int fault, int at, int to, int error,
                  long part, int dry, int gated) {
  struct shared *s = memory;
  memset(s, 0, sizeof *s);
  snprintf(s->root, sizeof s->root, "%s", root);
  s->fault = fault, s->at = at, s->to = to, s->error = error, s->part = part;
  s->dry = dry, s->gated = gated;
  sem_init(&s->go, 1, 0);
  sem_init(&s->arrived, 1, 0);
}

void shim_arm(int on) { shared->armed = on; }

void shim_done(void) {
  shared->armed = 0;
  shared->state = DONE;
  sem_post(&shared->arrived);
}

/* Lets a gated child go on from where it stopped. */
void shim_go(void *memory) { sem_post(&((struct shared *)memory)->go); }

/* The state that a gated child stops in; -1 if it has not stopped in a while. */
int shim_wait(void *memory) {
  struct shared *s = memory;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  if ((end.tv_nsec += 100000000) >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
  while (sem_timedwait(&s->arrived, &end))
    if (errno != EINTR) return -1;
  return s->state;
}

const char *shim_pending(void *memory) { return ((struct shared *)memory)->pending; }

int shim_count(void *memory) { return ((struct shared *)memory)->count; }

int shim_event(void *memory, int n, char *text, int room) {
  struct event *e = &((struct shared *)memory)->events[n];
  return snprintf(text, room, "%s\t%s\t%s\t%ld\t%d\t%d", e->call, e->path, e->other,
                  e->size, e->result, e->error);
}

/* What is under the folder. */

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static const char *under(const char *path) {
  if (!shared || !shared->armed || !path) return NULL;
  size_t n = strlen(shared->root);
  if (strncmp(path, shared->root, n) || (path[n] && path[n] != '/')) return NULL;
  return path[n] ? path + n + 1 : ".";
}

/* As above, also for paths that begin at an open folder. */
static const char *under_at(int dir, const char *path, char *room) {
  if (!path || path[0] == '/' || dir < 0 || dir >= FDS || !tracked[dir][0])
    return under(path);
  snprintf(room, TEXT, "%s/%s", tracked[dir], path);
  return room;
}

static const char *of(int fd) {
  int known = shared && shared->armed && fd >= 0 && fd < FDS && tracked[fd][0];
  return known ? tracked[fd] : NULL;
}

static void stop_at_gate(int state) {
  if (!shared->gated) return;
  shared->state = state;
  sem_post(&shared->arrived);
  while (sem_wait(&shared->go) && errno == EINTR) {
  }
  shared->state = RUNNING;
}

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

/* Begins an event: its number, and whether it is to fail (errno is set). */
static struct event *begin(const char *call, const char *path, const char *other,
                           long size, int *fault) {
  snprintf(shared->pending, sizeof shared->pending, "%s", call);
  stop_at_gate(WAITING);
  int n = __atomic_fetch_add(&shared->count, 1, __ATOMIC_SEQ_CST);
  if (n >= EVENTS) die();
  struct event *e = &shared->events[n];
  snprintf(e->call, sizeof e->call, "%s", call);
  snprintf(e->path, sizeof e->path, "%s", path);
  snprintf(e->other, sizeof e->other, "%s", other ? other : "");
  e->size = size, e->result = -1, e->error = -1;
  *fault = n >= shared->at && n < shared->to ? shared->fault : NONE;
  if (*fault == KILL) die();
  if (*fault == FAIL) e->error = shared->error;
  return e;
}

static long end(struct event *e, long result) {
  e->error = result < 0 ? errno : 0;
  e->result = (int)result;
  return result;
}

static long failed(struct event *e) {
  errno = e->error;
  return -1;
}

/* Calls on paths. */

static int opened(const char *path, int fd) {
  if (fd >= 0 && fd < FDS) snprintf(tracked[fd], sizeof tracked[fd], "%s", path);
  return fd;
}

#define OPEN(name, real_call, lookup, ...) \
  int name(__VA_ARGS__, int flags, ...) { \
    REAL(name); \
    mode_t mode = 0; \
    char room[TEXT]; \
    (void)room; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
      va_list more; \
      va_start(more, flags); \
      mode = va_arg(more, mode_t); \
      va_end(more); \
    } \
    const char *at = lookup; \
    if (!at) return real_call; \
    int fault; \
    const char *kind = flags & O_CREAT ? "create" : flags & O_DIRECTORY ? "opendir" \
                                                                        : "open"; \
    struct event *e = begin(kind, at, NULL, flags, &fault); \
    if (fault == FAIL) return failed(e); \
    char kept[TEXT]; \
    snprintf(kept, sizeof kept, "%s", at); \
    return opened(kept, end(e, real_call)); \
  }

OPEN(open, real(path, flags, mode), under(path), const char *path)
OPEN(open64, real(path, flags, mode), under(path), const char *path)
OPEN(openat, real(dir, path, flags, mode), under_at(dir, path, room), int dir,
     const char *path)
OPEN(openat64, real(dir, path, flags, mode), under_at(dir, path, room), int dir,
     const char *path)

#define ON_PATH(name, kind, signature, arguments, lookup) \
  int name signature { \
    REAL(name); \
    char room[TEXT]; \
    (void)room; \
    const char *at = lookup; \
    if (!at) return real arguments; \
    int fault; \
    struct event *e = begin(kind, at, NULL, 0, &fault); \
    if (fault == FAIL) return failed(e); \
    return end(e, real arguments); \
  }

ON_PATH(mkdir, "mkdir", (const char *path, mode_t mode), (path, mode), under(path))
ON_PATH(mkdirat, "mkdir", (int dir, const char *path, mode_t mode), (dir, path, mode),
        under_at(dir, path, room))
ON_PATH(rmdir, "rmdir", (const char *path), (path), under(path))
ON_PATH(unlink, "unlink", (const char *path), (path), under(path))
ON_PATH(unlinkat, "unlink", (int dir, const char *path, int flags), (dir, path, flags),
        under_at(dir, path, room))
ON_PATH(truncate, "truncate", (const char *path, off_t size), (path, size), under(path))
ON_PATH(truncate64, "truncate", (const char *path, off64_t size), (path, size),
        under(path))

#define ON_PATHS(name, kind, signature, arguments, first, second) \
  int name signature { \
    REAL(name); \
    char room[TEXT], more[TEXT]; \
    (void)room, (void)more; \
    const char *at = first, *to = second; \
    if (!at && !to) return real arguments; \
    int fault; \
    struct event *e = begin(kind, at ? at : "", to, 0, &fault); \
    if (fault == FAIL) return failed(e); \
    return end(e, real arguments); \
  }

ON_PATHS(rename, "rename", (const char *from, const char *path), (from, path),
         under(from), under(path))
ON_PATHS(renameat, "rename", (int dir, const char *from, int other, const char *path),
         (dir, from, other, path), under_at(dir, from, room),
         under_at(other, path, more))
ON_PATHS(renameat2, "rename",
         (int dir, const char *from, int other, const char *path, unsigned flags),
         (dir, from, other, path, flags), under_at(dir, from, room),
         under_at(other, path, more))
ON_PATHS(link, "link", (const char *from, const char *path), (from, path), under(from),
         under(path))
ON_PATHS(linkat, "link",
         (int dir, const char *from, int other, const char *path, int flags),
         (dir, from, other, path, flags), under_at(dir, from, room),
         under_at(other, path, more))
ON_PATHS(symlink, "symlink", (const char *from, const char *path), (from, path), NULL,
         under(path))

/* Calls on open files. */

#define WRITE(name, signature, arguments, wanted, some) \
  ssize_t name signature { \
    REAL(name); \
    const char *at = of(fd); \
    if (!at) return real arguments; \
    int fault; \
    size_t all = wanted; \
    struct event *e = begin("write", at, NULL, all, &fault); \
    if (fault == FAIL) return failed(e); \
    if (fault == TORN || fault == SHORT) { \
      size_t part = (size_t)shared->part < all ? (size_t)shared->part : all; \
      ssize_t done = end(e, some); \
      if (fault == TORN) die(); \
      return done; \
    } \
    return end(e, real arguments); \
  }

static size_t total(const struct iovec *parts, int count) {
  size_t size = 0;
  for (int n = 0; n < count; n++) size += parts[n].iov_len;
  return size;
}

/* The first bytes of several pieces, one piece after the other. */
static ssize_t some_of(int fd, const struct iovec *parts, int count, size_t part) {
  ssize_t (*plain)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
  size_t done = 0;
  for (int n = 0; n < count && done < part; n++) {
    size_t size = parts[n].iov_len < part - done ? parts[n].iov_len : part - done;
    ssize_t got = plain(fd, parts[n].iov_base, size);
    if (got < 0) return got;
    done += got;
  }
  return done;
}

WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), size,
      real(fd, data, part))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t where),
      (fd, data, size, where), size, real(fd, data, part, where))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t where),
      (fd, data, size, where), size, real(fd, data, part, where))
WRITE(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count),
      total(parts, count), some_of(fd, parts, count, part))

#define ON_FILE(name, kind, signature, arguments, is_dry) \
  int name signature { \
    REAL(name); \
    const char *at = of(fd); \
    if (!at) return real arguments; \
    int fault; \
    struct event *e = begin(kind, at, NULL, 0, &fault); \
    if (fault == FAIL) return failed(e); \
    return end(e, is_dry && shared->dry ? 0 : real arguments); \
  }

ON_FILE(fsync, "fsync", (int fd), (fd), 1)
ON_FILE(fdatasync, "fdatasync", (int fd), (fd), 1)
ON_FILE(ftruncate, "truncate", (int fd, off_t size), (fd, size), 0)
ON_FILE(ftruncate64, "truncate", (int fd, off64_t size), (fd, size), 0)

int close(int fd) {
  REAL(close);
  const char *at = of(fd);
  if (fd >= 0 && fd < FDS && !at) tracked[fd][0] = 0;
  if (!at) return real(fd);
  int fault;
  struct event *e = begin("close", at, NULL, 0, &fault);
  tracked[fd][0] = 0;
  /* Linux closes the file also when it says that it failed. */
  int done = end(e, real(fd));
  if (fault != FAIL) return done;
  e->error = shared->error, e->result = -1;
  return failed(e);
}

/* Lists of folders: the C library opens and closes them by itself. */

DIR *opendir(const char *path) {
  REAL(opendir);
  const char *at = under(path);
  if (!at) return real(path);
  int fault;
  struct event *e = begin("opendir", at, NULL, 0, &fault);
  DIR *list = NULL;
  if (fault == FAIL) {
    failed(e);
    return NULL;
  }
  list = real(path);
  opened(at, end(e, list ? dirfd(list) : -1));
  return list;
}

int closedir(DIR *list) {
  REAL(closedir);
  int fd = dirfd(list);
  const char *at = of(fd);
  if (fd >= 0 && fd < FDS && !at) tracked[fd][0] = 0;
  if (!at) return real(list);
  int fault;
  struct event *e = begin("close", at, NULL, 0, &fault);
  tracked[fd][0] = 0;
  return end(e, real(list));
}

int flock(int fd, int how) {
  REAL(flock);
  const char *at = of(fd);
  if (!at) return real(fd, how);
  int fault;
  struct event *e = begin("lock", at, NULL, how, &fault);
  if (fault == FAIL) return failed(e);
  if (!shared->gated || how & (LOCK_NB | LOCK_UN)) return end(e, real(fd, how));
  while (real(fd, how | LOCK_NB)) {
    if (errno != EWOULDBLOCK) return end(e, -1);
    stop_at_gate(BLOCKED);
  }
  return end(e, 0);
}

/* Locks of open files, which TensorStore can be told to use. */
static int record_lock(int (*real)(int, int, ...), int fd, int command, void *argument) {
  const char *at = of(fd);
  int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||
              command == F_OFD_SETLKW;
  if (!at || !locks) return real(fd, command, argument);
  int fault;
  struct event *e = begin("lock", at, NULL, command, &fault);
  if (fault == FAIL) return failed(e);
  if (!shared->gated || command != F_OFD_SETLKW)
    return end(e, real(fd, command, argument));
  while (real(fd, F_OFD_SETLK, argument)) {
    if (errno != EAGAIN && errno != EACCES) return end(e, -1);
    stop_at_gate(BLOCKED);
  }
  return end(e, 0);
}

int fcntl(int fd, int command, ...) {
  REAL(fcntl);
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  return record_lock(real, fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
  REAL(fcntl64);
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  return record_lock(real, fd, command, argument);
}
