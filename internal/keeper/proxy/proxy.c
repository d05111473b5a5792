#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proxy.h"

void berth_proxy(int argc, char **argv);

/* How long the proxy of a keeper that has been killed waits for the next one, in seconds. */
enum { PATIENCE = 300 };

/*
 * How often the wait for the container is begun again where it has failed while the sandbox lives, and how soon. One
 * that has lasted some seconds before does not count: somebody has killed it, as the kernel does when memory is short.
 */
enum { TRIES = 20, LASTED = 2 };
static const struct timespec nap = {0, 250 * 1000 * 1000};

/* The most arguments that a call of the runtime has. */
enum { MOST = 64 };

struct call {
	char *argv[MOST];
	int n;
};

static void add(struct call *c, char *arg)
{
	if (c->n >= MOST - 1)
		_exit(PROXY_UNKNOWN);
	c->argv[c->n++] = arg;
}

/* begin makes a call of the runtime, with the arguments that all have. */
static void begin(struct call *c, char **argv)
{
	c->n = 0;
	memset(c->argv, 0, sizeof c->argv);
	for (char **arg = argv + PROXY_ARG_RUNTIME; *arg != NULL; arg++)
		add(c, *arg);
}

/*
 * run starts the runtime. A temporary child ends with this process; another one goes on. Standard streams of -1 are
 * this process's.
 */
static pid_t run(struct call *c, int out, int err, int temporary)
{
	pid_t self = getpid(), pid = fork();
	sigset_t none;

	if (pid != 0)
		return pid;
	if (temporary) {
		prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		if (getppid() != self)
			_exit(PROXY_UNKNOWN);
	}
	if ((out >= 0 && dup2(out, 1) < 0) || (err >= 0 && dup2(err, 2) < 0))
		_exit(PROXY_UNKNOWN);
	closefrom_three();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv(c->argv[0], c->argv);
	_exit(127);
}

/* start lets the container's program begin, with the standard streams of this process, and tells the keeper. */
static void start(char **argv)
{
	struct call c;
	struct proxy_start how = {0};
	pid_t pid;

	begin(&c, argv);
	add(&c, "--log");
	add(&c, argv[PROXY_ARG_DETAIL]);
	add(&c, "--log-format");
	add(&c, "json");
	add(&c, "start");
	add(&c, argv[PROXY_ARG_ID]);
	pid = run(&c, -1, -1, 0);
	if (pid < 0 || waitpid(pid, &how.status, 0) != pid)
		how.status = -1;
	proxy_tell(&how, 0);
}

/* proxy_tell tells the keeper how the start has ended. After a start that has failed, the process ends. */
void proxy_tell(const struct proxy_start *how, size_t text)
{
	/* Nobody is there to read it if the keeper has been killed meanwhile. */
	send(PROXY_FD_KEEPER, how, sizeof how->status + text, MSG_NOSIGNAL);
	if (how->status != 0)
		_exit(PROXY_NOT_STARTED);
	close(PROXY_FD_KEEPER);
}

/* exit_code finds the exit code in what the runtime's wait has printed. It is -1 if there is none. */
static int exit_code(int fd)
{
	static const char key[] = "\"exitStatus\":";
	char text[1024], *at, *end;
	size_t have = 0;
	ssize_t n;
	long code;

	while (have < sizeof text - 1 && (n = read(fd, text + have, sizeof text - 1 - have)) > 0)
		have += (size_t)n;
	text[have] = 0;
	at = strstr(text, key);
	if (at == NULL)
		return -1;
	at += sizeof key - 1;
	code = strtol(at, &end, 10);
	if (end == at || code < 0 || code > 255)
		return -1;
	return (int)code;
}

/* proxy_sandbox_is_gone waits for the end of the sandbox, or of the shim, for at most so long. */
int proxy_sandbox_is_gone(int milliseconds)
{
	struct pollfd p = {.fd = PROXY_FD_SANDBOX, .events = POLLIN};

	return poll(&p, 1, milliseconds) > 0;
}

static time_t seconds(void)
{
	struct timespec now = {0, 0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

/* follow ends as the container does, and passes signals on meanwhile. */
static void follow(char **argv)
{
	pid_t waiter = 0, killer = 0, pid;
	int ends[2] = {-1, -1}, tries = 0, sig, code;
	time_t began = 0;
	struct call c;
	sigset_t all, children;

	sigfillset(&all);
	sigemptyset(&children);
	sigaddset(&children, SIGCHLD);
	for (;;) {
		if (waiter == 0) {
			if (tries++ == TRIES)
				_exit(PROXY_UNKNOWN);
			if (tries > 1)
				nanosleep(&nap, NULL);
			if (pipe(ends) < 0)
				continue;
			begin(&c, argv);
			add(&c, "wait");
			add(&c, argv[PROXY_ARG_ID]);
			began = seconds();
			waiter = run(&c, ends[1], PROXY_FD_ERRORS, 1);
			close(ends[1]);
			if (waiter < 0) {
				close(ends[0]);
				waiter = 0;
				continue;
			}
		}
		/* One signal after the other: the runtime is not to deliver them in another order. */
		sig = sigwaitinfo(killer != 0 ? &children : &all, NULL);
		if (sig == SIGCHLD) {
			while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
				if (pid == killer)
					killer = 0;
				if (pid != waiter)
					continue;
				waiter = 0;
				code = exit_code(ends[0]);
				close(ends[0]);
				if (code >= 0)
					_exit(code);
				if (proxy_sandbox_is_gone(0))
					_exit(PROXY_KILLED);
				if (seconds() - began > LASTED)
					tries = 1;
			}
		} else if (sig > 0) {
			char number[16];

			snprintf(number, sizeof number, "%d", sig);
			begin(&c, argv);
			add(&c, "kill");
			add(&c, argv[PROXY_ARG_ID]);
			add(&c, number);
			killer = run(&c, -1, PROXY_FD_ERRORS, 0);
			if (killer < 0)
				killer = 0;
		}
	}
}

/* proxy_drop_streams gives the container's standard streams up: its program has them. */
void proxy_drop_streams(void)
{
	int null = open_null();

	for (int fd = 0; fd < 3; fd++)
		if (null < 0 || dup2(null, fd) < 0)
			close(fd);
	if (null > 2)
		close(null);
}

/* It runs before all Go: see podinit.c. */
#ifndef BERTH_PROGRAM
__attribute__((constructor))
#endif
void berth_proxy(int argc, char **argv)
{
	sigset_t all;
	int shim;
	char go;

	if (argc <= PROXY_ARG_RUNTIME || argv == NULL || argv[0] == NULL || strcmp(argv[0], PROXY_NAME) != 0)
		return;
	shim = strcmp(argv[PROXY_ARG_RUNTIME], PROXY_SHIM) == 0;
	if (shim && argc != PROXY_SHIM_ARGS)
		_exit(PROXY_UNKNOWN);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	prctl(PR_SET_NAME, PROXY_NAME, 0, 0, 0);
	if (strcmp(argv[PROXY_ARG_STATE], PROXY_WAITS) == 0) {
		if (shim)
			proxy_await_keeper();
		if (read(PROXY_FD_KEEPER, &go, 1) != 1) {
			if (shim && *argv[PROXY_ARG_DETAIL] != 0)
				_exit(PROXY_ABANDONED);
			/* The keeper is dead. The next one undoes the start, and kills this process. */
			sleep(PATIENCE);
			_exit(PROXY_UNKNOWN);
		}
		/* The command line tells the next keeper, if this one is killed, that the program may have begun. */
		argv[PROXY_ARG_STATE] = PROXY_RUNS;
		execv("/proc/self/exe", argv);
		_exit(PROXY_UNKNOWN);
	}
	if (shim)
		proxy_of_shim(argv);
	start(argv);
	proxy_drop_streams();
	follow(argv);
}
