/* What C libraries do differently. glibc's functions are used as they are; musl, of which a static fiberd is made on machines
 * without a compiler (hatch_build.py), has no malloc_trim, sends a batch one message at a time, and refuses real-time
 * priority: its sched_setscheduler is a stub that fails with ENOSYS. The system calls themselves are the same. */
#ifndef FIBERD_LIBC_H
#define FIBERD_LIBC_H

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Run this process at `priority` of SCHED_FIFO; 0, or -1 with errno. */
static inline int libc_run_realtime(int priority) {
    const struct sched_param parameter = {.sched_priority = priority};
    return (int)syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &parameter);
}

/* sendmmsg(2). The kernel's msg_iovlen is a size_t: musl declares an int and padding, which must be zero, as it is in a
 * struct msghdr that was initialized by name. */
static inline int libc_send_batch(int fd, struct mmsghdr *messages, unsigned count, int flags) {
#ifdef __GLIBC__
    return sendmmsg(fd, messages, count, flags);
#else
    return (int)syscall(SYS_sendmmsg, fd, messages, count, flags);
#endif
}

/* Free a block of `bytes`, and return its pages to the kernel. glibc does so in libc_trim(). musl keeps a freed block as long as
 * a neighbour of its group is in use, and the frames to receive into are always in use. */
static inline void libc_free(void *block, size_t bytes) {
#ifndef __GLIBC__
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)block + page - 1) & -page,
                    to = ((uintptr_t)block + bytes) & -page;
    if (to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
#else
    (void)bytes;
#endif
    free(block);
}

/* Return memory that was freed to the kernel, where the library keeps it. */
static inline void libc_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

#endif
