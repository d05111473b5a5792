#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(void)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

void berth_podinit(int argc, char **argv);

/*
 * In a keeper that has this in its own program, it runs before all Go. glibc calls constructors with the arguments
 * of main.
 */
#ifndef BERTH_PROGRAM
__attribute__((constructor))
#endif
void berth_podinit(int argc, char **argv)
{
	sigset_t set;
	int sig;

	if (argc < 1 || argv == NULL || argv[0] == NULL || strcmp(argv[0], "/berth-init") != 0)
		return;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_SETMASK, &set, NULL);
	prctl(PR_SET_NAME, "berth-init", 0, 0, 0);
	/* A child that ended before the mask was set has left no signal. */
	reap();
	for (;;) {
		sig = sigwaitinfo(&set, NULL);
		if (sig == SIGCHLD)
			reap();
		else if (sig > 0)
			_exit(0);
		else if (errno != EINTR)
			_exit(1);
	}
}
