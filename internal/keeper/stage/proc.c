#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/*
 * A procfs shows the PID namespace in which the caller of fsopen(2) is, and a stage that joins one stays outside of it
 * until it is set up. So a process of its own is born in the namespace, makes that one call, and sends what it gets.
 * What the other processes of the namespace can see of it is an empty directory and the pod's own network;
 * and one of them that may trace others can make it do no more than the calls below, of which only fsopen needs
 * a right: what fsopen gives is worth nothing to who may not mount it.
 */

int stage_proc = -1;

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the number of this architecture in seccomp filters is missing"
#endif

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter calls[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	ALLOW(fsopen),
	ALLOW(sendmsg),
	ALLOW(clone),
	ALLOW(wait4),
	ALLOW(exit_group),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

union control {
	char space[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

static long duplicate(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

/* An error goes as the byte that comes with a descriptor. */
static void __attribute__((noreturn)) send_context(int to)
{
	union control control = {.space = {0}};
	int fs = stage_call(SYS_fsopen, "proc", FSOPEN_CLOEXEC);
	unsigned char error = fs < 0 ? (unsigned char)errno : 0;
	struct iovec iov = {.iov_base = &error, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;

	if (fs >= 0) {
		msg.msg_control = control.space;
		msg.msg_controllen = sizeof(control.space);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fs, sizeof(int));
	}
	stage_end(syscall(SYS_sendmsg, to, &msg, MSG_NOSIGNAL) != 1);
}

/* Outside of the namespace still: gives up what must not be seen in it, and has a child in it. */
static void __attribute__((noreturn)) send_from(int pid_namespace, int to)
{
	struct sock_fprog prog = {.len = sizeof(calls) / sizeof(*calls), .filter = calls};
	long child;

	if (setns(pid_namespace, CLONE_NEWPID) != 0 || setns(STAGE_FD_NAMESPACES, CLONE_NEWNS) != 0 ||
	    unshare(CLONE_NEWCGROUP) != 0)
		stage_end(1);
	if (dup2(to, 0) < 0 || syscall(SYS_close_range, 1, ~0U, 0) != 0)
		stage_end(1);
	stage_keep_capabilities((uint64_t)1 << CAP_SYS_ADMIN);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) != 0)
		stage_end(1);
	child = duplicate();
	if (child == 0)
		send_context(0);
	if (child > 0)
		syscall(SYS_wait4, child, NULL, 0, NULL);
	stage_end(child < 0);
}

static int receive_context(int from)
{
	union control control;
	unsigned char error = 0;
	struct iovec iov = {.iov_base = &error, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
	    .msg_controllen = sizeof(control.space)};
	struct cmsghdr *c;
	ssize_t n;
	int fs;

	do
		n = recvmsg(from, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	c = n == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int))) {
		errno = n == 1 && error ? error : n < 0 ? errno : ESRCH;
		return -1;
	}
	memcpy(&fs, CMSG_DATA(c), sizeof(int));
	return fs;
}

int stage_open_proc(int pid_namespace)
{
	int ends[2], fs;
	long helper;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		stage_fail(STEP_PROC);
	helper = duplicate();
	if (helper < 0)
		stage_fail(STEP_PROC);
	if (helper == 0)
		send_from(pid_namespace, ends[1]);
	close(ends[1]);
	fs = receive_context(ends[0]);
	if (fs < 0)
		stage_fail(STEP_PROC);
	close(ends[0]);
	syscall(SYS_wait4, helper, NULL, 0, NULL);
	return fs;
}
