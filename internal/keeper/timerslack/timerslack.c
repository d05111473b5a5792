#include <sys/prctl.h>

/* Both in nanoseconds; timerslack.go has the same. */
#define KEEPER_SLACK 500000
#define KERNEL_SLACK 50000

/*
 * Before all other constructors: that of libcontainer forks what becomes a container. Commands of this program are words;
 * a keeper has flags. A stage, which has neither, keeps what it inherits.
 */
__attribute__((constructor(101))) static void berth_timerslack(int argc, char **argv)
{
	if (argc < 2)
		return;
	prctl(PR_SET_TIMERSLACK, argv[1][0] == '-' ? KEEPER_SLACK : KERNEL_SLACK, 0, 0, 0);
}
