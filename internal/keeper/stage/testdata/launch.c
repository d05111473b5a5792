/*
 * Takes a stage's place, and executes it when each of its system calls asks a supervisor first: the test that started
 * it, which finds the descriptor for that (seccomp_unotify(2)) with pidfd_getfd(2).
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	struct sock_filter ask = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	struct sock_fprog prog = {.len = 1, .filter = &ask};
	char *argv[] = {"berth-stage", NULL}, *envp[] = {NULL};

	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &prog) < 0)
		_exit(101);
	syscall(SYS_execve, PROGRAM, argv, envp);
	_exit(102);
}
