/* A file system whose server has forgotten its files: preloaded, calls for files below $STALE_BELOW
 * fail with ESTALE for as long as the file $STALE_WHILE exists, and the process is named by a line of
 * that file. What is open is forgotten, too. Covered is what Python and torch call here; relative
 * paths are not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

static int now(void) {
  const char *flag = getenv("STALE_WHILE");
  return flag && syscall(SYS_faccessat, AT_FDCWD, flag, F_OK) == 0;
}

static int below(const char *path) {
  const char *place = getenv("STALE_BELOW");
  size_t length = place ? strlen(place) : 0;
  if (!length || !path || strncmp(path, place, length) != 0) return 0;
  if (path[length] != '/' && path[length] != 0) return 0;
  char line[16];
  int size = snprintf(line, sizeof line, "%d\n", (int)getpid());
  int file = syscall(SYS_openat, AT_FDCWD, getenv("STALE_WHILE"), O_WRONLY | O_APPEND);
  syscall(SYS_write, file, line, (size_t)size);
  syscall(SYS_close, file);
  errno = ESTALE;
  return 1;
}

static int is_stale(const char *path) { return now() && below(path); }

static int is_stale_at(int folder, const char *path) {
  char link[64], name[4096];
  if (!now()) return 0;
  if (path && path[0] == '/') return below(path);
  if (folder < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1);
  if (length < 0) return 0;
  name[length] = 0;
  return below(name);
}

static int is_stale_open(int file) { return is_stale_at(file, NULL); }

#define OPEN(name)                                                    \
  int name(const char *path, int flags, ...) {                        \
    va_list more;                                                     \
    va_start(more, flags);                                            \
    mode_t mode = va_arg(more, mode_t);                               \
    va_end(more);                                                     \
    return is_stale(path) ? -1 : NEXT(name)(path, flags, mode);       \
  }
#define OPENAT(name)                                                               \
  int name(int folder, const char *path, int flags, ...) {                         \
    va_list more;                                                                  \
    va_start(more, flags);                                                         \
    mode_t mode = va_arg(more, mode_t);                                            \
    va_end(more);                                                                  \
    return is_stale_at(folder, path) ? -1 : NEXT(name)(folder, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

FILE *fopen(const char *path, const char *mode) {
  return is_stale(path) ? NULL : NEXT(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
  return is_stale(path) ? NULL : NEXT(fopen64)(path, mode);
}
DIR *opendir(const char *path) { return is_stale(path) ? NULL : NEXT(opendir)(path); }

#define STAT(name, of)                                       \
  int name(const char *path, struct of *found) {             \
    return is_stale(path) ? -1 : NEXT(name)(path, found);    \
  }
#define FSTAT(name, of)                                      \
  int name(int file, struct of *found) {                     \
    return is_stale_open(file) ? -1 : NEXT(name)(file, found); \
  }
#define FSTATAT(name, of)                                                          \
  int name(int folder, const char *path, struct of *found, int flags) {            \
    return is_stale_at(folder, path) ? -1 : NEXT(name)(folder, path, found, flags); \
  }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

int mkdir(const char *path, mode_t mode) { return is_stale(path) ? -1 : NEXT(mkdir)(path, mode); }
int unlink(const char *path) { return is_stale(path) ? -1 : NEXT(unlink)(path); }
int rename(const char *from, const char *to) {
  return is_stale(from) ? -1 : NEXT(rename)(from, to);
}

ssize_t read(int file, void *to, size_t size) {
  return is_stale_open(file) ? -1 : NEXT(read)(file, to, size);
}
ssize_t write(int file, const void *from, size_t size) {
  return is_stale_open(file) ? -1 : NEXT(write)(file, from, size);
}
ssize_t pread64(int file, void *to, size_t size, off64_t offset) {
  return is_stale_open(file) ? -1 : NEXT(pread64)(file, to, size, offset);
}
int fsync(int file) { return is_stale_open(file) ? -1 : NEXT(fsync)(file); }
int ftruncate64(int file, off64_t size) {
  return is_stale_open(file) ? -1 : NEXT(ftruncate64)(file, size);
}
