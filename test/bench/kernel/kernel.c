/*
 * What the kernel itself needs for the parts of a pod's life: the system calls, one after another, and nothing else.
 * No checks of paths, no records, no options. `make bench-kernel` runs it (root).
 *   kernel [ROUNDS [EXECS]]: so many pods, with so many execs in each
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 200 /* by default, and at most */
#define HIERARCHIES 32

static int rounds = ROUNDS;
static char base[64] = "/tmp/berth-kernel-XXXXXX";
static char cgroups[HIERARCHIES][256];
static int v2[HIERARCHIES], hierarchies;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static char *in_base(const char *name)
{
	static char path[8][256];
	static int next;
	char *p = path[next++ % 8];

	snprintf(p, sizeof(path[0]), "%s/%s", base, name);
	return p;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* The processor time in ms of this process and of all whose ends it has waited for. */
static double used(void)
{
	static const int whose[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
	double ms = 0;
	int i;

	for (i = 0; i < 2; i++) {
		struct rusage u;

		getrusage(whose[i], &u);
		ms += (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
	}
	return ms;
}

static int compare(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;

	return (d > 0) - (d < 0);
}

static void report(const char *what, double *took)
{
	qsort(took, rounds, sizeof(*took), compare);
	printf("%-58s %8.3f %8.3f %8.3f\n", what, took[rounds / 2], took[rounds * 9 / 10], took[rounds * 99 / 100]);
}

static void find_hierarchies(void)
{
	FILE *f = fopen("/proc/self/mounts", "r");
	char dev[256], dir[256], type[64], rest[1024];

	while (f && hierarchies < HIERARCHIES && fscanf(f, "%255s %255s %63s %1023[^\n]", dev, dir, type, rest) == 4) {
		if (strncmp(type, "cgroup", 6) != 0)
			continue;
		v2[hierarchies] = strcmp(type, "cgroup2") == 0;
		snprintf(cgroups[hierarchies++], sizeof(cgroups[0]), "%.200s/berth-kernel-%d", dir, getpid());
	}
	if (f)
		fclose(f);
}

static void make_cgroups(void)
{
	int i;

	for (i = 0; i < hierarchies; i++) {
		char file[512], value[64] = "";
		int fd;

		if (mkdir(cgroups[i], 0755) != 0)
			die(cgroups[i]);
		if (!strstr(cgroups[i], "/cpuset/"))
			continue;
		const char *names[] = {"cpuset.cpus", "cpuset.mems"};
		for (int k = 0; k < 2; k++) { /* v1: empty until told, and then nobody may join */
			snprintf(file, sizeof(file), "%.255s/../%s", cgroups[i], names[k]);
			if ((fd = open(file, O_RDONLY)) < 0 || read(fd, value, sizeof(value)) <= 0)
				die(file);
			close(fd);
			snprintf(file, sizeof(file), "%.255s/%s", cgroups[i], names[k]);
			if ((fd = open(file, O_WRONLY)) < 0 || write(fd, value, strlen(value)) < 0)
				die(file);
			close(fd);
		}
	}
}

static void join_cgroups(void)
{
	int i;

	for (i = 0; i < hierarchies; i++) {
		char file[300];
		int fd;

		snprintf(file, sizeof(file), "%.255s/%s", cgroups[i], v2[i] ? "cgroup.procs" : "tasks");
		if ((fd = open(file, O_WRONLY | O_CLOEXEC)) < 0 || write(fd, "0", 1) != 1)
			die(file);
		close(fd);
	}
}

static void remove_cgroups(void)
{
	int i;

	for (i = 0; i < hierarchies; i++)
		while (rmdir(cgroups[i]) != 0 && errno == EBUSY)
			usleep(100);
}

/* The namespaces of a pod, pinned. */
static void pin_namespaces(void)
{
	static const struct {
		const char *kind;
		int flag;
	} kinds[] = {{"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS}};
	char path[64];
	int ready[2], i;
	pid_t pid;

	if (pipe2(ready, O_CLOEXEC) != 0)
		die("pipe");
	if ((pid = fork()) == 0) {
		if (unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0 || write(ready[1], "", 1) != 1)
			_exit(1);
		pause();
		_exit(0);
	}
	if (read(ready[0], path, 1) != 1)
		die("unshare");
	for (i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, kinds[i].kind);
		if (mount(path, in_base(kinds[i].kind), NULL, MS_BIND, NULL) != 0)
			die(path);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(ready[0]);
	close(ready[1]);
}

static void unpin_namespaces(void)
{
	umount2(in_base("net"), MNT_DETACH);
	umount2(in_base("ipc"), MNT_DETACH);
	umount2(in_base("uts"), MNT_DETACH);
}

static struct {
	struct nlmsghdr h;
	struct ifinfomsg i;
	char space[512];
} request;

static struct rtattr *attribute(int type, const void *data, int size)
{
	struct rtattr *a = (void *)((char *)&request + NLMSG_ALIGN(request.h.nlmsg_len));

	a->rta_type = type;
	a->rta_len = RTA_LENGTH(size);
	if (size)
		memcpy(RTA_DATA(a), data, size);
	request.h.nlmsg_len = NLMSG_ALIGN(request.h.nlmsg_len) + RTA_ALIGN(a->rta_len);
	return a;
}

static void nested(struct rtattr *a) { a->rta_len = (char *)&request + request.h.nlmsg_len - (char *)a; }

static void send_request(int type, int flags)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char space[1024];
	} answer;
	static int fd = -1;

	if (fd < 0 && (fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) < 0)
		die("netlink");
	request.h.nlmsg_type = type;
	request.h.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
	if (send(fd, &request, request.h.nlmsg_len, 0) < 0 || recv(fd, &answer, sizeof(answer), 0) < 0)
		die("netlink");
	if (answer.h.nlmsg_type == NLMSG_ERROR && answer.e.error != 0) {
		errno = -answer.e.error;
		die("netlink");
	}
}

static void begin_request(void)
{
	memset(&request, 0, sizeof(request));
	request.h.nlmsg_len = NLMSG_LENGTH(sizeof(request.i));
}

static char link_name[IFNAMSIZ];

static void make_veth(void)
{
	struct rtattr *info, *data, *peer;
	int ns = open(in_base("net"), O_RDONLY | O_CLOEXEC);

	begin_request();
	attribute(IFLA_IFNAME, link_name, strlen(link_name) + 1);
	info = attribute(IFLA_LINKINFO, NULL, 0);
	attribute(IFLA_INFO_KIND, "veth", 4);
	data = attribute(IFLA_INFO_DATA, NULL, 0);
	peer = attribute(VETH_INFO_PEER, NULL, 0);
	request.h.nlmsg_len += sizeof(struct ifinfomsg);
	attribute(IFLA_IFNAME, "eth0", 5);
	attribute(IFLA_NET_NS_FD, &ns, sizeof(ns));
	nested(peer);
	nested(data);
	nested(info);
	send_request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
	close(ns);
}

static void remove_veth(void)
{
	begin_request();
	attribute(IFLA_IFNAME, link_name, strlen(link_name) + 1);
	send_request(RTM_DELLINK, 0);
}

static void mount_root(void)
{
	char options[1024];

	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%s,workdir=%s", in_base("lower"), in_base("upper"),
	    in_base("work"));
	if (mount("overlay", in_base("root"), "overlay", 0, options) != 0)
		die("overlay");
}

/* A process in a root of its own. It returns once its program runs, at a close on exec. */
static pid_t start(void)
{
	int done[2], i;
	char byte;
	pid_t pid;

	if (pipe2(done, O_CLOEXEC) != 0)
		die("pipe");
	pid = syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWCGROUP | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0) {
		static const char *kinds[] = {"net", "ipc", "uts"};
		static const char *devices[] = {"null", "zero", "full", "random", "urandom", "tty"};

		for (i = 0; i < 3; i++) {
			int fd = open(in_base(kinds[i]), O_RDONLY | O_CLOEXEC);

			if (setns(fd, 0) != 0)
				die("setns");
			close(fd);
		}
		join_cgroups();
		if (chdir(in_base("root")) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
			die("private");
		if (mount("proc", "proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL) != 0 ||
		    mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "mode=755") != 0 || mkdir("dev/pts", 0755) != 0 ||
		    mkdir("dev/shm", 0755) != 0 ||
		    mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") != 0 ||
		    mount("tmpfs", "dev/shm", "tmpfs", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL) != 0 ||
		    mount("sysfs", "sys", "sysfs", MS_NOSUID | MS_NOEXEC | MS_NODEV | MS_RDONLY, NULL) != 0)
			die("mount");
		for (i = 0; i < 6; i++) {
			char path[32];

			snprintf(path, sizeof(path), "dev/%s", devices[i]);
			if (mknod(path, S_IFCHR | 0666, 0x103) != 0)
				die(path);
		}
		if (syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0)
			die("pivot_root");
		execl("/bin/busybox", "sleep", "1000", NULL);
		die("exec");
	}
	if (pid < 0)
		die("clone");
	close(done[1]);
	if (read(done[0], &byte, 1) != 0)
		die("start");
	close(done[0]);
	return pid;
}

static void exec_in(pid_t target)
{
	int fd = syscall(SYS_pidfd_open, target, 0), status;
	pid_t first, pid = 0;
	int number[2];

	if (pipe2(number, O_CLOEXEC) != 0)
		die("pipe");
	if ((first = vfork()) == 0) {
		join_cgroups();
		if (setns(fd, CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP) != 0)
			_exit(1);
		pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
		if (pid == 0) {
			execl("/bin/busybox", "true", NULL);
			_exit(1);
		}
		if (write(number[1], &pid, sizeof(pid)) != sizeof(pid))
			_exit(1);
		_exit(0);
	}
	if (read(number[0], &pid, sizeof(pid)) != sizeof(pid))
		die("exec");
	waitpid(first, NULL, 0);
	waitpid(pid, &status, 0);
	if (status != 0)
		die("exec");
	close(fd);
	close(number[0]);
	close(number[1]);
}

static void copy_busybox(void)
{
	char buf[65536];
	ssize_t n;
	int in = open("/bin/busybox", O_RDONLY), out = open(in_base("lower/bin/busybox"), O_WRONLY | O_CREAT, 0755);

	if (in < 0 || out < 0)
		die("/bin/busybox (Debian: busybox-static)");
	while ((n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, n) != n)
			die("copy");
	close(in);
	close(out);
}

int main(int argc, char **argv)
{
	static const char *dirs[] = {"lower", "lower/bin", "lower/proc", "lower/dev", "lower/sys", "upper", "work", "root"};
	static double pins[ROUNDS], veths[ROUNDS], roots[ROUNDS], groups[ROUNDS], starts[ROUNDS], execs[ROUNDS], gone[ROUNDS],
	    links[ROUNDS],
		pod[ROUNDS];
	double begins = 0, ends = 0, probes = 0;
	unsigned int i;
	int count = 1, k;

	if ((argc > 1 && ((rounds = atoi(argv[1])) < 1 || rounds > ROUNDS)) || (argc > 2 && (count = atoi(argv[2])) < 1)) {
		fprintf(stderr, "usage: %s [ROUNDS [EXECS]], at most %d rounds\n", argv[0], ROUNDS);
		return 2;
	}
	if (geteuid() != 0 || !mkdtemp(base)) {
		fprintf(stderr, "needs root\n");
		return 1;
	}
	/* A place of its own to mount: nothing of it is left on the machine, however this ends. */
	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("tmpfs", base, "tmpfs", 0, NULL) != 0)
		die("mount");
	find_hierarchies();
	for (i = 0; i < sizeof(dirs) / sizeof(*dirs); i++)
		if (mkdir(in_base(dirs[i]), 0755) != 0)
			die(dirs[i]);
	for (i = 0; i < 3; i++)
		close(open(in_base((const char *[]){"net", "ipc", "uts"}[i]), O_CREAT | O_WRONLY, 0600));
	copy_busybox();
	for (i = 0; i < (unsigned int)rounds; i++) {
		double t[6], c[4];
		pid_t pid;

		snprintf(link_name, sizeof(link_name), "bk%d.%u", getpid() % 1000000, i);
		c[0] = used();
		t[0] = now();
		pin_namespaces();
		t[1] = now();
		make_veth();
		t[2] = now();
		mount_root();
		t[3] = now();
		make_cgroups();
		t[4] = now();
		pid = start();
		t[5] = now();
		pins[i] = t[1] - t[0];
		veths[i] = t[2] - t[1];
		roots[i] = t[3] - t[2];
		groups[i] = t[4] - t[3];
		starts[i] = t[5] - t[4];
		pod[i] = t[5] - t[0];
		c[1] = used();
		t[0] = now();
		for (k = 0; k < count; k++)
			exec_in(pid);
		execs[i] = (now() - t[0]) / count;
		c[2] = used();
		t[0] = now();
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		remove_cgroups();
		umount2(in_base("root"), MNT_DETACH);
		gone[i] = now() - t[0];
		t[0] = now();
		remove_veth();
		links[i] = now() - t[0];
		unpin_namespaces();
		c[3] = used();
		begins += c[1] - c[0];
		ends += c[3] - c[2];
		probes += c[2] - c[1];
	}
	umount2(base, MNT_DETACH);
	rmdir(base);
	printf("%-58s %8s %8s %8s\n", "ms", "p50", "p90", "p99");
	report("pin network, IPC and UTS namespaces", pins);
	report("a veth pair", veths);
	report("mount the root file system", roots);
	report("make the cgroups", groups);
	report("clone, join, mount, pivot, execute", starts);
	report("all of these: pod to running", pod);
	report("join a container, execute /bin/true, wait", execs);
	report("kill, wait, remove cgroups and root", gone);
	report("remove the veth pair", links);
	printf("%-58s %8.3f\n", "processor time of a pod's start, mean", begins / rounds);
	printf("%-58s %8.3f\n", "processor time of its end, mean", ends / rounds);
	printf("%-58s %8.3f\n", "processor time of an exec, mean", probes / rounds / count);
	return 0;
}
