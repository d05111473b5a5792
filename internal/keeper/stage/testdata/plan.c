/*
 * Reads plans from its standard input, each behind its length, and has the stage go through each in a child of its own,
 * built with the address and the undefined-behaviour sanitizer. No system call that would change anything is made:
 * it seems to succeed. For each plan a byte is written: 0, or 1 where a sanitizer has found something,
 * which is on standard error then.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../inner.h"

#define FOUND 77

const char *__asan_default_options(void) { return "exitcode=77:detect_leaks=0:symbolize=0:abort_on_error=0"; }
const char *__ubsan_default_options(void) { return "exitcode=77:halt_on_error=1:print_stacktrace=0"; }

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static const struct sock_filter harmless[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	ALLOW(read), ALLOW(write), ALLOW(pwrite64), ALLOW(close), ALLOW(fstat), ALLOW(statx), ALLOW(fstatfs),
	ALLOW(lseek), ALLOW(mmap),
	ALLOW(munmap), ALLOW(mprotect), ALLOW(madvise), ALLOW(brk), ALLOW(exit), ALLOW(exit_group), ALLOW(rt_sigprocmask),
	ALLOW(rt_sigaction), ALLOW(sigaltstack), ALLOW(getpid), ALLOW(gettid), ALLOW(futex), ALLOW(getcwd),
#ifdef SYS_newfstatat
	ALLOW(newfstatat),
#endif
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO),
};

static void try(const char *plan, uint32_t size)
{
	struct sock_fprog prog = {.len = sizeof(harmless) / sizeof(*harmless), .filter = (struct sock_filter *)harmless};
	int ends[2], null = open("/dev/null", O_RDWR), memory = memfd_create("plan", 0), fd, i;

	if (null < 0 || memory < 0 || write(memory, plan, size) != (ssize_t)size ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
		_exit(1);
	for (i = 0; i < 4; i++)
		if (send(ends[0], "", 1, 0) != 1)
			_exit(1);
	memory = fcntl(memory, F_DUPFD, 200);
	ends[1] = fcntl(ends[1], F_DUPFD, 200);
	ends[0] = fcntl(ends[0], F_DUPFD, 200);
	for (fd = 0; fd < 100; fd++)
		if (fd != 2)
			dup2(null, fd);
	dup2(memory, STAGE_FD_PLAN);
	dup2(ends[1], STAGE_FD_KEEPER);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) != 0)
		_exit(1);
	stage_main();
}

static int read_all(void *to, size_t n)
{
	ssize_t k;

	for (; n; n -= k, to = (char *)to + k)
		if ((k = read(0, to, n)) <= 0)
			return 0;
	return 1;
}

int main(void)
{
	static char plan[1 << 20];
	uint32_t size;
	int status;
	pid_t pid;

	while (read_all(&size, sizeof(size)) && size <= sizeof(plan) && read_all(plan, size)) {
		char found;

		if ((pid = fork()) == 0)
			try(plan, size);
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			return 1;
		found = !WIFEXITED(status) || WEXITSTATUS(status) == FOUND;
		if (write(1, &found, 1) != 1)
			return 1;
	}
	return 0;
}
