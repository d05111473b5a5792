#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

/* Calls go to the kernel directly where glibc would do more than the call. */

struct stage_plan *stage_plan;

#define MAX_CGROUPS 64

/*
 * The end of this process, whatever its filter of system calls says of an exit: the C library's would try for ever. A
 * signal that the process raises itself ends it, as the first of a PID namespace too.
 */
void stage_end(int code)
{
	syscall(SYS_exit_group, code);
	__builtin_trap();
}

static void tell(int step, int value, int operation)
{
	struct stage_status s = {.step = step, .value = value, .operation = operation};
	ssize_t n;

	do
		n = write(STAGE_FD_KEEPER, &s, sizeof(s));
	while (n < 0 && errno == EINTR);
	if (n != sizeof(s))
		stage_end(1); /* the keeper would wait for it */
}

void stage_say(int step, int value) { tell(step, value, -1); }

void stage_fail_at(int step, int error, int operation)
{
	tell(step, error, operation);
	stage_end(1);
}

void stage_fail(int step) { stage_fail_at(step, errno, -1); }

static void __attribute__((noreturn)) fail_with(int step, int error) { stage_fail_at(step, error, -1); }

void stage_close(int fd, int step)
{
	if (close(fd) != 0)
		stage_fail(step);
}

static void close_from(unsigned int first)
{
	if (syscall(SYS_close_range, first, ~0U, 0) != 0)
		stage_fail(STEP_DESCRIPTORS);
}

/* A list lies in the plan, behind its head and before its last byte. */
static uint32_t check_list(const struct stage_list *l, uint32_t room, size_t size)
{
	uint64_t end = l->offset + ((uint64_t)l->count + room) * size;

	if (l->count == 0 && room == 0)
		return l->offset;
	if (l->offset < sizeof(*stage_plan) || l->offset % 8 || end >= stage_plan->size)
		fail_with(STEP_PLAN, EINVAL);
	return (uint32_t)end;
}

/* What is written to is nothing else's. */
static void check_apart(const struct stage_list *a, uint32_t a_end, const struct stage_list *b, uint32_t b_end)
{
	if (a->offset < b_end && b->offset < a_end)
		fail_with(STEP_PLAN, EINVAL);
}

static uint32_t environment_room(void) { return stage_plan->flags & STAGE_HOME ? 2 : 1; }

static void check_plan(void)
{
	uint32_t args, env, operations;

	if (*((const char *)stage_at(stage_plan->size - 1)) != 0 || stage_plan->last_capability > 63 ||
	    stage_plan->args.count == 0 ||
	    stage_plan->filter.count > BPF_MAXINSNS || stage_plan->wider.count > BPF_MAXINSNS ||
	    stage_plan->cgroups.count > MAX_CGROUPS)
		fail_with(STEP_PLAN, EINVAL);
	check_list(&stage_plan->groups, 0, sizeof(uint32_t));
	check_list(&stage_plan->limits, 0, sizeof(struct stage_limit));
	check_list(&stage_plan->filter, 0, sizeof(struct sock_filter));
	check_list(&stage_plan->wider, 0, sizeof(struct sock_filter));
	check_list(&stage_plan->joins, 0, sizeof(struct stage_namespace));
	operations = check_list(&stage_plan->operations, 0, sizeof(struct stage_op));
	args = check_list(&stage_plan->args, 1, sizeof(uint64_t));
	env = check_list(&stage_plan->env, environment_room(), sizeof(uint64_t));
	check_apart(&stage_plan->args, args, &stage_plan->env, env);
	check_apart(&stage_plan->args, args, &stage_plan->operations, operations);
	check_apart(&stage_plan->env, env, &stage_plan->operations, operations);
}

static void map_plan(void)
{
	struct stat st;
	void *p;

	if (fstat(STAGE_FD_PLAN, &st) != 0 || (size_t)st.st_size < sizeof(*stage_plan))
		fail_with(STEP_PLAN, EINVAL);
	/* Private and writable: the places of arguments and environment become pointers. */
	p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, STAGE_FD_PLAN, 0);
	if (p == MAP_FAILED)
		stage_fail(STEP_PLAN);
	stage_plan = p;
	if (stage_plan->magic != STAGE_MAGIC || stage_plan->size != st.st_size)
		fail_with(STEP_PLAN, EINVAL);
	check_plan();
	stage_close(STAGE_FD_PLAN, STEP_DESCRIPTORS);
}

/* struct clone_args of <linux/sched.h>, which does not go together with <sched.h> everywhere. */
struct clone_args_of_cgroup {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP */

/*
 * A container may have no processor time left in its cgroup, or may have frozen it. If the keeper itself created a
 * process there, it would wait in vfork(2) until that process had executed the stage. So the keeper starts the stage
 * in its own cgroup, and only the stage's child is in the container's. To write to cgroup.procs would take a grace
 * period of all processors. The child is the keeper's, and this process goes.
 */
static void be_in_cgroup(void)
{
	int fd = STAGE_FD_CGROUPS + (int)stage_plan->cgroups.count;
	struct clone_args_of_cgroup args = {.flags = INTO_CGROUP | CLONE_PARENT | stage_plan->born, .cgroup = (uint64_t)fd};
	long pid;

	if (!(stage_plan->flags & STAGE_CLONE))
		return;
	pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid < 0)
		stage_fail(STEP_CGROUP);
	if (pid > 0) {
		stage_say(STEP_PID, (int)pid);
		stage_end(0);
	}
	stage_close(fd, STEP_CGROUP);
}

/* A thread that moves itself needs no lock against all others (Linux 5.13; before that it only takes longer). */
static void join_cgroups(void)
{
	uint32_t i;

	for (i = 0; i < stage_plan->cgroups.count; i++) {
		int fd = STAGE_FD_CGROUPS + (int)i;

		if (write(fd, "0", 1) != 1)
			stage_fail(STEP_CGROUP);
		stage_close(fd, STEP_CGROUP);
	}
}

static void reset_affinity(void)
{
	static unsigned char all[64 * 1024 / 8];

	/* What the container's cpuset allows, and not what the keeper was given. */
	memset(all, 0xff, sizeof(all));
	syscall(SYS_sched_setaffinity, 0, sizeof(all), all);
}

static void set_oom_score(void)
{
	char want[16], have[16];
	ssize_t n, m;
	int fd;

	if (!(stage_plan->flags & STAGE_OOM_SCORE))
		return;
	n = snprintf(want, sizeof(want), "%d\n", stage_plan->oom_score);
	fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		stage_fail(STEP_OOM_SCORE);
	m = read(fd, have, sizeof(have));
	if ((m != n || memcmp(have, want, (size_t)n) != 0) && pwrite(fd, want, (size_t)n, 0) != n)
		stage_fail(STEP_OOM_SCORE);
	close(fd);
}

struct limit {
	uint64_t soft, hard;
};

static struct limit files;

/* Sources of all mounts are open at a time. */
static void raise_files(void)
{
	struct limit all;

	if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &files) != 0)
		stage_fail(STEP_RLIMIT);
	all.soft = all.hard = files.hard;
	if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &all, NULL) != 0)
		stage_fail(STEP_RLIMIT);
}

static void set_limit(uint32_t i)
{
	const struct stage_limit *l = (const struct stage_limit *)stage_at(stage_plan->limits.offset) + i;
	struct limit r = {l->soft, l->hard};

	if (syscall(SYS_prlimit64, 0, l->resource, &r, NULL) != 0)
		stage_fail_at(STEP_RLIMIT, errno, (int)i);
}

/* Raises a hard limit as far as it is to go, while there is the right to. */
static struct limit raise_limit(uint32_t i)
{
	const struct stage_limit *l = (const struct stage_limit *)stage_at(stage_plan->limits.offset) + i;
	struct limit r;

	if (syscall(SYS_prlimit64, 0, l->resource, NULL, &r) != 0)
		stage_fail_at(STEP_RLIMIT, errno, (int)i);
	if (r.hard < l->hard) {
		r.hard = l->hard;
		if (syscall(SYS_prlimit64, 0, l->resource, &r, NULL) != 0)
			stage_fail_at(STEP_RLIMIT, errno, (int)i);
	}
	return r;
}

/*
 * A limit of processes counts those that its user has on the whole host, and this process is one of them
 * until it has forked. So the child sets that limit.
 */
static int is_for_child(uint32_t i)
{
	const struct stage_limit *l = stage_at(stage_plan->limits.offset);

	return l[i].resource == RLIMIT_NPROC && stage_plan->flags & STAGE_FORK;
}

static void leave_to_child(uint32_t i)
{
	struct limit r = raise_limit(i);

	r.soft = r.hard;
	if (syscall(SYS_prlimit64, 0, RLIMIT_NPROC, &r, NULL) != 0)
		stage_fail_at(STEP_RLIMIT, errno, (int)i);
}

static int limits_files(void)
{
	const struct stage_limit *l = stage_at(stage_plan->limits.offset);
	uint32_t i;

	for (i = 0; i < stage_plan->limits.count; i++)
		if (l[i].resource == RLIMIT_NOFILE)
			return 1;
	return 0;
}

static void set_limits(void)
{
	uint32_t i;

	/* Not if it has another limit: in a user namespace, a hard limit that was lowered cannot be raised again. */
	if (files.hard && !limits_files() && syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &files, NULL) != 0)
		stage_fail(STEP_RLIMIT);
	for (i = 0; i < stage_plan->limits.count; i++) {
		if (is_for_child(i))
			leave_to_child(i);
		else
			set_limit(i);
	}
}

static void set_limits_of_child(void)
{
	uint32_t i;

	for (i = 0; i < stage_plan->limits.count; i++)
		if (is_for_child(i))
			set_limit(i);
}

static void fork_for_keeper(void)
{
	long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);

	if (pid < 0)
		stage_fail(STEP_FORK);
	if (pid > 0) {
		stage_say(STEP_PID, (int)pid);
		stage_end(0);
	}
}

/*
 * A PID namespace that has been joined holds for children only. So this process stays on the host, where no container
 * can see it, until it has everything that the container's process is to have and nothing else: the container's root,
 * mounts and network, its user and capabilities. Only then does it fork, and the child, which the container sees
 * from its first moment on, has no more rights and shows no more of the host than the program that it becomes.
 * The child is the keeper's own, and this process goes.
 */
static void fork_into_pid_namespace(void)
{
	if (stage_plan->flags & STAGE_FORK)
		fork_for_keeper();
}

/*
 * Nobody but who may trace any process on the host reads what this one has, until it is another program.
 * A change of the user makes it what the host has for that (suid_dumpable), so it is said again after each.
 */
static void be_closed(void)
{
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
		stage_fail(STEP_DUMPABLE);
}

static void become_root(void)
{
	if (syscall(SYS_setresgid, 0, 0, 0) != 0 || syscall(SYS_setresuid, 0, 0, 0) != 0)
		stage_fail(STEP_ROOT);
	if (syscall(SYS_setgroups, 0, NULL) != 0)
		stage_fail(STEP_ROOT);
	be_closed();
}

void stage_enter_user_namespace(int user)
{
	if (setns(user, CLONE_NEWUSER) != 0)
		stage_fail(STEP_USER);
	close(user);
	/* A PID namespace of the user namespace's own, so that a procfs of it can be mounted there. */
	if (stage_plan->flags & STAGE_FORK_EARLY) {
		if (unshare(CLONE_NEWPID) != 0)
			stage_fail(STEP_UNSHARE);
		fork_for_keeper();
	}
	become_root();
}

static void enter_namespaces(void)
{
	int rest = (int)(stage_plan->namespaces & ~(uint32_t)CLONE_NEWUSER);

	/* With the host's rights first; the user namespace has fewer. */
	if (rest && setns(STAGE_FD_NAMESPACES, rest) != 0)
		stage_fail(STEP_NAMESPACE);
	if (stage_plan->namespaces & CLONE_NEWUSER) {
		if (setns(STAGE_FD_NAMESPACES, CLONE_NEWUSER) != 0)
			stage_fail(STEP_NAMESPACE);
	}
	stage_close(STAGE_FD_NAMESPACES, STEP_DESCRIPTORS);
	become_root();
	/*
	 * It shows the same as the container's, since this process is in the container's cgroup and user namespace. What
	 * the program starts stays in it, and is found by that.
	 */
	if (stage_plan->flags & STAGE_CGROUP_NAMESPACE && unshare(CLONE_NEWCGROUP) != 0)
		stage_fail(STEP_UNSHARE);
}

/*
 * The next execve changes the AppArmor profile or the SELinux label. Only a process itself can ask for that,
 * and the kernel hands it on to a child.
 */
static void confine(int fd)
{
	const char *text = stage_text(stage_plan->confinement);
	size_t n = strlen(text);

	if (fd < 0)
		stage_fail(STEP_CONFINE_OPEN);
	if (write(fd, text, n) != (ssize_t)n)
		stage_fail(STEP_CONFINE);
	close(fd);
}

/* On the host, whose /proc is to be trusted. */
static void confine_on_host(void)
{
	int fd = -1;

	if (!stage_plan->confinement)
		return;
	errno = ENOENT;
	if (!(stage_plan->flags & STAGE_SELINUX))
		fd = open("/proc/thread-self/attr/apparmor/exec", O_WRONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		fd = open("/proc/thread-self/attr/exec", O_WRONLY | O_CLOEXEC);
	confine(fd);
}

/* In a container, by what the kernel itself shows there alone, whatever may be mounted over it. */
static void confine_inside(void)
{
	struct open_how how = {
		.flags = O_WRONLY | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	struct statfs fs;
	struct stat st;
	int proc, fd = -1;

	if (!stage_plan->confinement)
		return;
	proc = open("/proc", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (proc < 0)
		stage_fail(STEP_CONFINE_OPEN);
	if (fstatfs(proc, &fs) != 0 || fs.f_type != PROC_SUPER_MAGIC || fstat(proc, &st) != 0 || st.st_ino != 1)
		fail_with(STEP_CONFINE_OPEN, EINVAL);
	errno = ENOENT;
	if (!(stage_plan->flags & STAGE_SELINUX))
		fd = stage_call(SYS_openat2, proc, "thread-self/attr/apparmor/exec", &how, sizeof(how));
	if (fd < 0 && errno == ENOENT)
		fd = stage_call(SYS_openat2, proc, "thread-self/attr/exec", &how, sizeof(how));
	close(proc);
	confine(fd);
}

/* The keyring that is joined next gets the container's label. execve(2) ends this. */
static void label_keyring(void)
{
	const char *label = stage_text(stage_plan->confinement);
	int fd;

	if (!(stage_plan->flags & STAGE_SELINUX) || !(stage_plan->flags & STAGE_KEYRING))
		return;
	fd = open("/proc/thread-self/attr/keycreate", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, label, strlen(label)) < 0)
		stage_fail(STEP_LABEL);
	close(fd);
}

#define KEY_USR_ALL 0x003f0000u /* linux/key.h, which is the kernel's own */

/* Returns whether it has joined the container's session keyring. If not, errno says why, and nothing has changed. */
static int join_keyring_as_user(void)
{
	char text[512];
	const char *s = text;
	unsigned int rights;
	long ring, n;
	int fields;

	ring = syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, stage_text(stage_plan->keyring), 0, 0, 0);
	if (ring < 0)
		return 0;
	if (stage_plan->keyring_right == 0)
		return 1;
	/* type;user;group;rights;name */
	n = syscall(SYS_keyctl, KEYCTL_DESCRIBE, ring, text, sizeof(text) - 1);
	if (n < 0)
		stage_fail(STEP_KEYRING);
	text[n < (long)sizeof(text) ? n : (long)sizeof(text) - 1] = 0;
	for (fields = 0; s && fields < 3; fields++)
		s = (s = strchr(s, ';')) ? s + 1 : NULL;
	if (!s || sscanf(s, "%x", &rights) != 1)
		fail_with(STEP_KEYRING, EPROTO);
	/* Root of any container with CAP_SETUID can become the user of the keyring: only who knows its name may have it. */
	if (stage_plan->keyring_uid)
		rights &= ~KEY_USR_ALL;
	if (syscall(SYS_keyctl, KEYCTL_SETPERM, ring, rights | stage_plan->keyring_right, 0, 0) != 0)
		stage_fail(STEP_KEYRING);
	return 1;
}

/*
 * A keyring counts against the quota of the real user who makes it, and whoever has the same user ID for files may join
 * it by its name. Both would be the host's root for all containers without a user namespace: root of one could use up
 * the quota of all, without which no container starts, and could join the keyrings of the others. So the keyring of
 * such a container belongs to a user that no process has.
 */
static void join_keyring(void)
{
	int joined;

	if (!(stage_plan->flags & STAGE_KEYRING))
		return;
	if (stage_plan->keyring_uid && syscall(SYS_setresuid, stage_plan->keyring_uid, -1, -1) == 0) {
		syscall(SYS_setfsuid, stage_plan->keyring_uid);
		joined = join_keyring_as_user();
		syscall(SYS_setfsuid, 0);
		if (syscall(SYS_setresuid, 0, 0, 0) != 0)
			stage_fail(STEP_ROOT);
		be_closed();
		if (joined)
			return;
	}
	/* Where the keeper may not be that user, or the node gives only root a quota (kernel.keys.maxkeys), it is root's. */
	if (!join_keyring_as_user() && errno != ENOSYS)
		stage_fail(STEP_KEYRING);
}

/* A terminal of the container's own devpts. Its master goes to whoever waits at the console socket. */
void stage_make_terminal(void)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char name = 't';
	struct iovec iov = {.iov_base = &name, .iov_len = 1};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space,
	    .msg_controllen = sizeof(control.space)};
	struct cmsghdr *c;
	struct stat st;
	struct statfs fs;
	int master, peer, unlock = 0, i;

	if (!(stage_plan->flags & STAGE_TERMINAL)) {
		stage_close(STAGE_FD_CONSOLE, STEP_DESCRIPTORS);
		return;
	}
	master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW);
	if (master < 0)
		stage_fail(STEP_TERMINAL);
	/* What the container may have put there in its place must not be taken for one. */
	if (fstat(master, &st) != 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(5, 2) || fstatfs(master, &fs) != 0 ||
	    fs.f_type != DEVPTS_SUPER_MAGIC)
		fail_with(STEP_TERMINAL, ENOTTY);
	if (ioctl(master, TIOCSPTLCK, &unlock) != 0)
		stage_fail(STEP_TERMINAL);
	peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (peer < 0)
		stage_fail(STEP_TERMINAL);
	if (stage_plan->rows && stage_plan->columns) {
		struct winsize size = {.ws_row = (unsigned short)stage_plan->rows, .ws_col = (unsigned short)stage_plan->columns};

		if (ioctl(master, TIOCSWINSZ, &size) != 0)
			stage_fail(STEP_TERMINAL);
	}
	memset(&control, 0, sizeof(control));
	c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &master, sizeof(int));
	if (sendmsg(STAGE_FD_CONSOLE, &msg, MSG_NOSIGNAL) != 1)
		stage_fail(STEP_TERMINAL);
	for (i = 0; i < 3; i++)
		if (dup2(peer, i) < 0)
			stage_fail(STEP_TERMINAL);
	if (stage_plan->flags & STAGE_BEGIN)
		stage_mount_console(peer);
	close(peer);
	close(master);
	stage_close(STAGE_FD_CONSOLE, STEP_DESCRIPTORS);
}

/* The terminal that has been made becomes the controlling one, of a session of the process's own. */
static void lead_session(void)
{
	if (syscall(SYS_setsid) < 0)
		stage_fail(STEP_ROOT);
	if (stage_plan->flags & STAGE_TERMINAL && ioctl(0, TIOCSCTTY, 0) != 0)
		stage_fail(STEP_TERMINAL);
}

/* Standard streams belong to who will use them; what cannot be given stays as it is. */
static void give_stdio(void)
{
	int fd;

	for (fd = 0; fd < 3; fd++) {
		struct stat st;

		if (fstat(fd, &st) != 0)
			stage_fail(STEP_STDIO);
		if (st.st_uid == stage_plan->uid || (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
			continue;
		if (fchown(fd, stage_plan->uid, (gid_t)-1) != 0 && errno != EPERM && errno != EROFS)
			stage_fail(STEP_STDIO);
	}
}

static void check_cwd(void)
{
	char buf[4096];
	long n = syscall(SYS_getcwd, buf, sizeof(buf));

	/* A directory outside of the root is given with "(unreachable)" before its path. */
	if (n < 0)
		stage_fail(STEP_CWD_OUTSIDE);
	if (n < 2 || buf[0] != '/')
		fail_with(STEP_CWD_OUTSIDE, ENOENT);
}

static void put_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {
		{.effective = (uint32_t)effective, .permitted = (uint32_t)permitted, .inheritable = (uint32_t)inheritable},
		{.effective = (uint32_t)(effective >> 32), .permitted = (uint32_t)(permitted >> 32),
		    .inheritable = (uint32_t)(inheritable >> 32)},
	};

	if (syscall(SYS_capset, &header, data) != 0)
		stage_fail(STEP_CAPABILITIES);
}

void stage_keep_capabilities(uint64_t set) { put_capabilities(set, set, 0); }

static void drop_bounding(void)
{
	uint32_t c;

	for (c = 0; c <= stage_plan->last_capability; c++)
		if (!(stage_plan->bounding >> c & 1) && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) != 0)
			stage_fail(STEP_BOUNDING);
}

static void change_user(void)
{
	if (syscall(SYS_setgroups, stage_plan->groups.count, stage_at(stage_plan->groups.offset)) != 0)
		stage_fail(STEP_GROUPS);
	if (syscall(SYS_setgid, stage_plan->gid) != 0)
		stage_fail(STEP_GID);
	if (syscall(SYS_setuid, stage_plan->uid) != 0)
		stage_fail(STEP_UID);
}

/* Without no_new_privs a filter is loaded with CAP_SYS_ADMIN, which is then kept until it is. */
static int filter_needs_admin(void) { return stage_plan->filter.count && !(stage_plan->flags & STAGE_NO_NEW_PRIVS); }

static void set_capabilities(void)
{
	uint64_t admin = filter_needs_admin() ? (uint64_t)1 << CAP_SYS_ADMIN : 0;
	uint32_t c;

	if (!(stage_plan->flags & STAGE_CAPABILITIES))
		return;
	put_capabilities(stage_plan->effective | admin, stage_plan->permitted | admin, stage_plan->inheritable);
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
		stage_fail(STEP_CAPABILITIES);
	for (c = 0; c <= stage_plan->last_capability; c++)
		if (stage_plan->ambient >> c & 1)
			prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0); /* one that is not permitted is left out */
}

static void load(const struct stage_list *filter)
{
	struct sock_fprog prog = {.len = (unsigned short)filter->count, .filter = stage_at(filter->offset)};

	if (filter->count && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, stage_plan->seccomp_flags, &prog) != 0)
		stage_fail(STEP_SECCOMP);
}

/* From here on the container's own rules hold: few calls, and only such as every program makes, but for capset. */
static void load_filter(void)
{
	load(&stage_plan->filter);
	if (filter_needs_admin() && stage_plan->flags & STAGE_CAPABILITIES)
		put_capabilities(stage_plan->effective, stage_plan->permitted, stage_plan->inheritable);
}

#define MAX_PASSWD (8 << 20) /* bytes of it that are read: the file is the container's */

/* HOME of a user as the container's /etc/passwd has it. */
static const char *home(void)
{
	static char buf[64 * 1024], found[4096 + 5] = "HOME=/";
	struct stat st;
	struct statfs fs;
	size_t have = 0, total = 0;
	char *line, *end;
	int fd;

	fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return found;
	/* A link may lead to a file of /proc, and reading some of those does something: /proc/kmsg is read by one alone. */
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || fstatfs(fd, &fs) != 0 || fs.f_type == PROC_SUPER_MAGIC) {
		close(fd);
		return found;
	}
	for (;;) {
		ssize_t n = read(fd, buf + have, sizeof(buf) - 1 - have);

		if (n > 0) {
			have += (size_t)n;
			total += (size_t)n;
		}
		buf[have] = '\n';
		for (line = buf;
		    line < buf + have && (end = memchr(line, '\n', (size_t)(buf + have + (n <= 0) - line)));
		    line = end + 1) {
			char *field[7], *s = line;
			int fields = 1;
			uint64_t uid = 0;

			*end = 0;
			field[0] = s;
			for (; *s; s++)
				if (*s == ':') {
					*s = 0;
					if (fields == 7)
						break;
					field[fields++] = s + 1;
				}
			if (fields < 6 || *field[2] == 0)
				continue;
			for (s = field[2]; *s >= '0' && *s <= '9' && uid <= UINT32_MAX; s++)
				uid = 10 * uid + (uint64_t)(*s - '0');
			if (*s || uid != stage_plan->uid || strlen(field[5]) >= sizeof(found) - 5)
				continue;
			strcpy(found + 5, field[5]);
			close(fd);
			return found;
		}
		if (n <= 0 || total > MAX_PASSWD)
			break;
		have = (size_t)(buf + have - line);
		if (have >= sizeof(buf) - 1)
			break; /* a line that is no user's */
		memmove(buf, line, have);
	}
	close(fd);
	return found;
}

/* Offsets of strings become pointers, in place: the plan leaves room for them. */
static const char **strings(const struct stage_list *l, const char *extra)
{
	uint64_t *offsets = stage_at(l->offset);
	const char **out = (const char **)offsets;
	uint32_t i;

	for (i = 0; i < l->count; i++)
		out[i] = stage_text(offsets[i]);
	if (extra)
		out[i++] = extra;
	out[i] = NULL;
	return out;
}

static int executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return errno;
	if (S_ISDIR(st.st_mode))
		return EISDIR;
	if (syscall(439 /* faccessat2 */, AT_FDCWD, path, X_OK, AT_EACCESS) == 0)
		return 0;
	if (errno == ENOSYS || errno == EPERM)
		return st.st_mode & 0111 ? 0 : EACCES;
	return errno;
}

/* The program that a name stands for: by PATH, which never means the working directory. */
static const char *look_up(const char *name)
{
	static char found[8192];
	const char *dir, *next;
	int error;

	if (strchr(name, '/')) {
		if ((error = executable(name)) != 0)
			fail_with(STEP_STAT, error);
		return name;
	}
	for (dir = stage_plan->path ? stage_text(stage_plan->path) : ""; dir && *dir; dir = next) {
		int n;
		const char *colon = strchr(dir, ':');

		n = colon ? (int)(colon - dir) : (int)strlen(dir);
		next = colon ? colon + 1 : NULL;
		if ((size_t)snprintf(found, sizeof(found), "%.*s/%s", n ? n : 1, n ? dir : ".", name) >= sizeof(found))
			continue;
		if (executable(found) != 0)
			continue;
		if (found[0] != '/')
			fail_with(STEP_LOOKUP_RELATIVE, ENOENT);
		return found;
	}
	fail_with(STEP_LOOKUP, ENOENT);
}

/* A byte from the keeper. If it has gone, so has whoever wanted this process. */
static void await(void)
{
	char word;
	ssize_t n;

	do
		n = read(STAGE_FD_KEEPER, &word, 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		stage_fail(STEP_AWAIT);
	if (n == 0)
		stage_end(STAGE_ABANDONED);
}

/* From here on the program counts as begun, whatever becomes of this process and of the keeper. */
static void mark(void)
{
	if (!(stage_plan->flags & STAGE_MARK))
		return;
	if (write(STAGE_FD_MARK, STAGE_BEGUN, 1) != 1)
		stage_fail(STEP_MARK);
}

/* It cannot be executed. If the keeper does not come to say so, the start is made again and fails once more. */
static void unmark(void)
{
	int error = errno;

	if (stage_plan->flags & STAGE_MARK && pwrite(STAGE_FD_MARK, STAGE_WAITS, 1, 0) != 1)
		stage_fail_at(STEP_EXEC, error, -1); /* the container's filter forbids it */
	errno = error;
}

static int open_namespace(const struct stage_namespace *ns, int i)
{
	int fd = open(stage_text(ns->path), O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		stage_fail_at(STEP_JOIN, errno, (int)i);
	return fd;
}

/* Namespaces of the pod, but for its user namespace. That of processes holds for children only. */
static void join_others(void)
{
	const struct stage_namespace *ns = stage_at(stage_plan->joins.offset);
	uint32_t i;
	int fd;

	for (i = 0; i < stage_plan->joins.count; i++) {
		fd = open_namespace(&ns[i], (int)i);
		/* Before this process's own children are in it. */
		if (ns[i].type == CLONE_NEWPID && stage_mounts_proc())
			stage_proc = stage_open_proc(fd);
		if (setns(fd, (int)ns[i].type) != 0)
			stage_fail_at(STEP_JOIN, errno, (int)i);
		close(fd);
	}
}

static int open_user_namespace(void)
{
	uint32_t i;
	int fd;

	if (!stage_plan->user)
		return -1;
	fd = open(stage_text(stage_plan->user), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		stage_fail(STEP_USER);
	for (i = 0; i < stage_plan->limits.count; i++)
		raise_limit(i);
	return fd;
}

/* All that makes a container of a process that the keeper has started on the host. */
static void begin(void)
{
	umask(0);
	raise_files();
	if (stage_plan->flags & STAGE_WAIT)
		await();
	join_cgroups();
	reset_affinity();
	set_oom_score();
	confine_on_host();
	label_keyring();
	join_others();
	stage_leave_host(open_user_namespace());
	join_keyring();
	stage_set_up_root();
	if (!(stage_plan->flags & STAGE_TERMINAL))
		stage_close(STAGE_FD_CONSOLE, STEP_DESCRIPTORS);
	if (stage_plan->flags & STAGE_REOPEN_NULL)
		stage_reopen_null();
	stage_close_root();
}

/* All that makes a process, which the keeper has started on the host, one of a running container. */
static void join(void)
{
	join_cgroups();
	reset_affinity();
	set_oom_score();
	set_limits();
	confine_on_host();
	label_keyring();
	enter_namespaces();
	join_keyring();
	stage_make_terminal();
}

static void __attribute__((noreturn)) run(void)
{
	const char *program;
	const char **argv, **envp;
	int cwd;

	if (stage_plan->flags & STAGE_BEGIN)
		begin();
	else if (stage_plan->flags & STAGE_JOIN)
		join();
	else
		confine_inside();
	if (stage_plan->flags & STAGE_NO_NEW_PRIVS && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		stage_fail(STEP_NO_NEW_PRIVS);
	if (stage_plan->flags & STAGE_UMASK)
		umask(stage_plan->umask);

	/* A directory that only the runtime may enter, or else one that only the user may. */
	cwd = chdir(stage_text(stage_plan->cwd));
	if (cwd != 0 && errno != EACCES && errno != EPERM)
		stage_fail(STEP_CWD);
	argv = strings(&stage_plan->args, NULL);
	envp = strings(&stage_plan->env, stage_plan->flags & STAGE_HOME ? home() : NULL);

	if (stage_plan->flags & STAGE_BEGIN)
		set_limits();
	if (stage_plan->flags & STAGE_CAPABILITIES)
		drop_bounding();
	if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0)
		stage_fail(STEP_CAPABILITIES);
	give_stdio();
	change_user();
	if (cwd != 0 && chdir(stage_text(stage_plan->cwd)) != 0)
		stage_fail(STEP_CWD);
	check_cwd();
	if (prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) != 0)
		stage_fail(STEP_CAPABILITIES);
	set_capabilities();
	program = look_up(argv[0]);
	if (stage_plan->flags & (STAGE_BEGIN | STAGE_JOIN)) {
		be_closed();
		if (stage_plan->flags & STAGE_FILTER_EARLY)
			load_filter();
		else
			load(&stage_plan->wider);
		fork_into_pid_namespace();
		lead_session();
		set_limits_of_child();
		/* Of an exec that has forked, the keeper knows that it is set up as soon as it knows the child. */
		if (stage_plan->flags & STAGE_BEGIN || !(stage_plan->flags & STAGE_FORK))
			stage_say(STEP_READY, 0);
		await();
		mark();
	}
	if (!(stage_plan->flags & STAGE_FILTER_EARLY))
		load_filter();
	syscall(SYS_execve, program, argv, envp);
	unmark();
	stage_fail(STEP_EXEC);
}

void stage_main(void)
{
	sigset_t none;

	be_closed();
	stage_close(STAGE_FD_EXE, STEP_DESCRIPTORS);
	if (fcntl(STAGE_FD_KEEPER, F_SETFD, FD_CLOEXEC) != 0)
		stage_end(1);
	map_plan();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (stage_plan->flags & (STAGE_BEGIN | STAGE_JOIN)) {
		if (!(stage_plan->flags & STAGE_MARK))
			stage_close(STAGE_FD_MARK, STEP_DESCRIPTORS);
		else if (fcntl(STAGE_FD_MARK, F_SETFD, FD_CLOEXEC) != 0)
			stage_fail(STEP_DESCRIPTORS);
		if (!(stage_plan->flags & STAGE_NODE))
			stage_close(STAGE_FD_NODE, STEP_DESCRIPTORS);
		close_from(STAGE_FD_CGROUPS + stage_plan->cgroups.count + !!(stage_plan->flags & STAGE_CLONE));
		be_in_cgroup();
	} else {
		close_from(STAGE_FD_KEEPER + 1);
	}
	run();
}

/*
 * In a keeper that has this in its own program, it runs before all Go. glibc calls constructors with the arguments
 * of main.
 */
#ifndef BERTH_PROGRAM
__attribute__((constructor))
#endif
void berth_stage(int argc, char **argv)
{
	/* libcontainer names what it executes by its path. */
	if (argc < 1 || argc > 2 || argv == NULL || argv[argc - 1] == NULL || strcmp(argv[argc - 1], STAGE_NAME) != 0)
		return;
	if (argc == 2 && strcmp(argv[0], STAGE_PATH) != 0)
		return;
	stage_main();
}
