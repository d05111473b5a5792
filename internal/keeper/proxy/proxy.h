#ifndef BERTH_PROXY_H
#define BERTH_PROXY_H

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The arguments of a proxy: see doc.go. The last ones are the runtime and the flags that all its calls have. */
enum { PROXY_ARG_STATE = 1, PROXY_ARG_ID = 2, PROXY_ARG_LOG = 3, PROXY_ARG_RUNTIME = 4 };

/* Its descriptors, beside the container's standard streams. */
enum { PROXY_FD_KEEPER = 3, PROXY_FD_SANDBOX = 4, PROXY_FD_ERRORS = 5 };

/* The exit code of a proxy that cannot know the container's. */
enum { PROXY_UNKNOWN = 255 };

#define PROXY_NAME "berth-proxy"
#define PROXY_WAITS "waits"
#define PROXY_RUNS "runs"

/* closefrom_three closes all descriptors but the standard streams. */
static inline void closefrom_three(void)
{
	syscall(SYS_close_range, 3, ~0U, 0);
}

static inline int open_null(void)
{
	return open("/dev/null", O_RDWR | O_CLOEXEC);
}

#endif
