#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The kernel's own struct and call: glibc's sigaction refuses the signals that it keeps for itself (32 and 33), and its
 * posix_spawn ignores those in what it starts.
 */
struct kernel_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

#define HANDLER_DEFAULT ((void *)0)
#define HANDLER_IGNORE ((void *)1)
#define SIGNALS 64

__attribute__((constructor)) static void berth_sigdefault(void)
{
	struct kernel_sigaction action;
	int sig;

	for (sig = 1; sig <= SIGNALS; sig++) {
		if (syscall(SYS_rt_sigaction, sig, NULL, &action, sizeof(action.mask)) != 0 || action.handler != HANDLER_IGNORE)
			continue;
		/*
		 * An upgrade in place ignores this one until the next image catches it: a second request must not end the
		 * keeper before that.
		 */
		if (sig == SIGHUP && getenv("BERTH_KEEPER_STATE"))
			continue;
		action.handler = HANDLER_DEFAULT;
		syscall(SYS_rt_sigaction, sig, &action, NULL, sizeof(action.mask));
	}
}
