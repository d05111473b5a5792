#ifndef BERTH_PROXY_H
#define BERTH_PROXY_H

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The arguments of a proxy: see doc.go. For a container of an OCI runtime, PROXY_ARG_DETAIL is the file with the errors of the
 * runtime's start, and the arguments from PROXY_ARG_RUNTIME on are the runtime and the flags that all its calls have. For a
 * container of a shim, PROXY_ARG_RUNTIME is PROXY_SHIM, and PROXY_ARG_DETAIL the ID of the exec, empty for the container
 * itself.
 */
enum {
	PROXY_ARG_STATE = 1,
	PROXY_ARG_ID,
	PROXY_ARG_DETAIL,
	PROXY_ARG_RUNTIME,
	PROXY_ARG_SOCKET,  /* the shim's: a path, or a name after an @ */
	PROXY_ARG_SERVICE, /* the name of its task service */
	PROXY_SHIM_ARGS
};

/* Its descriptors, beside the container's standard streams. Those from PROXY_FD_INPUT on are only of a shim's. */
enum {
	PROXY_FD_KEEPER = 3,
	PROXY_FD_SANDBOX,
	PROXY_FD_ERRORS,
	PROXY_FD_INPUT,       /* what comes to the container, or its terminal: see shim.c */
	PROXY_FD_TO_INPUT,    /* the other end of its standard input */
	PROXY_FD_FROM_OUTPUT, /* with a terminal, the other end of its standard output */
	PROXY_FD_LOG,         /* what the shim writes to its log */
	PROXY_FD_EVENTS,      /* where the shim connects to send events */
	PROXY_FD_FREE         /* the first that is none of these */
};

#define PROXY_NAME "berth-proxy"
#define PROXY_WAITS "waits"
#define PROXY_RUNS "runs"
#define PROXY_SHIM "shim"

/*
 * The ends of the program that are no container's: it has been told to end, cannot know the container's end, or the
 * container has not begun. An exec that has not begun ends as the stage does: see stage.h.
 */
enum { PROXY_KILLED = 128 + 9, PROXY_UNKNOWN = 255, PROXY_NOT_STARTED = 128, PROXY_ABANDONED = 121 };

/* The longest message of a runtime that the keeper is told. */
enum { PROXY_TEXT = 2000 };

/* What the keeper is told of the runtime's start: 0, or an error and its text, which need not end with a 0. */
struct proxy_start {
	int status;
	char text[PROXY_TEXT];
};

/* In proxy.c. */
void proxy_tell(const struct proxy_start *how, size_t text);
void proxy_drop_streams(void);
int proxy_sandbox_is_gone(int milliseconds);

/* In shim.c: it returns when the keeper has something to read. Meanwhile events of the shim are answered. */
void proxy_await_keeper(void);

/* In shim.c: a container of a shim, or an exec in it. It does not return. */
void proxy_of_shim(char **argv);

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
